"""The searches of a study: which of its cells share one, the cells that it trains, and how it reads them.

A search has seeds of its own: a rate that is chosen on the seeds on which encodings are compared would be chosen for
their noise too. Its cells are ordinary cells of the ledger, without measurements. Their test metrics are not read.
"""

import math
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from pe_lab.config import flatten, folders, resolved
from pe_lab.config.looks import looks_of
from pe_lab.experiment.rounds import Outcome, with_settings
from pe_lab.experiment.search import Candidate, Choice, NoRateError, Plan, Rung, epochs_needed, halving
from pe_lab.experiment.tables import CellsMissingError
from pe_lab.results.from_ledger import validation
from pe_lab.results.rows import STARTING_SCALES, describe, settings_of
from pe_lab.system.files import LedgerError, canonical

LR = "optimizer.lr"
# of the cells of a search: they are trained and validated, and nothing else
UNMEASURED: dict[str, Any] = {
    "search": None,
    "tune.rates": None,
    "probe": {},
    "evaluate.lengths": [1.0],
    "evaluate.policy": ["raw"],
    "evaluate.offset": [0],
    "evaluate.decode": "none",
}
# settings in which the cells of one search may differ, or that say nothing about a training
_NOT_SETTINGS = (
    "seed",
    LR,
    "search",
    "tune",
    "shipped",
    "ledger",
    "study_name",
    "workers",
    "logger",
    "evaluate",
    "probe",
    "hydra",
)


def plan_of(cfg: DictConfig) -> Plan:
    """Return the search that a config asks for."""
    given = resolved(cfg.search)
    return Plan(**given | {name: tuple(map(float, given[name])) for name in ("rates", "scales")})


def starting_scale(leaf: DictConfig, path: str = "pe") -> str | None:
    """Return the setting that is the starting scale of an encoding, or of the encoding that it is made of; or None.

    Args:
        leaf: the settings of the encoding; path: of them in the config.

    Raises:
        ValueError: the option has another name than those that tables leave out where it has one value per encoding.
    """
    option = getattr(get_class(leaf["_target_"]), "start_scale", None)
    if option is not None and option in leaf:
        if option not in STARTING_SCALES:
            names = " or ".join(STARTING_SCALES)
            raise ValueError(f"start_scale of {leaf['_target_']} must be {names} to be searched, got {option!r}")
        return f"{path}.{option}"
    inner = (starting_scale(leaf[key], f"{path}.{key!s}") for key in leaf if _is_encoding(leaf[key]))
    return next(filter(None, inner), None)


def phased(leaf: DictConfig) -> bool:
    """Return whether an encoding, or one that it is made of, changes in the course of the training."""
    inner = [leaf[key] for key in leaf if _is_encoding(leaf[key])] + list(leaf.get("parts") or ())
    return bool(getattr(get_class(leaf["_target_"]), "phased", False)) or any(map(phased, inner))


def _is_encoding(value: Any) -> bool:
    return OmegaConf.is_dict(value) and "_target_" in value


@dataclass(eq=False)
class Search:
    """The cells of a study that share a search: an encoding in a setting, with all its seeds.

    Attributes:
        cfg: of the first of them.
        scale: the setting of the starting scale, if it is searched.
        name: the encoding and the setting, as among the other searches of the study; for messages.
        rung: whose cells are needed now; None: the search has ended.
        cost: core-seconds of each run of the search, up to the epochs that it needed, wherever it was trained.
    """

    cfg: DictConfig
    plan: Plan
    scale: str | None
    name: str = ""
    choice: Choice | None = None
    cost: dict[str, float] = field(default_factory=dict)
    searching: Generator[Rung, list[float], Choice] = field(init=False)
    rung: Rung | None = field(init=False)

    def __post_init__(self) -> None:
        self.searching = halving(self.plan, self.cfg.epochs, self.scale is not None)
        self.rung = next(self.searching)

    @property
    def epochs(self) -> int:
        """The epochs of training that the search needs before extensions."""
        shared = self.cfg.optimizer.schedule == "constant" and not phased(self.cfg.pe)
        return epochs_needed(self.plan, self.cfg.epochs, self.scale is not None, shared)

    @property
    def result(self) -> Choice:
        """What the search found, when it has ended."""
        assert self.choice is not None
        return self.choice

    def settings(self, candidate: Candidate) -> dict[str, Any]:
        """Return the settings that a candidate stands for."""
        return {LR: candidate.rate} | ({self.scale: candidate.scale} if self.scale else {})

    def chosen(self, cfg: DictConfig) -> DictConfig:
        """Return a cell of the study with what was chosen."""
        return with_settings(cfg, self.settings(self.result.best))

    def cells(self) -> list[DictConfig]:
        """Return the cells of the current rung: seed by seed for each candidate."""
        assert self.rung is not None
        name, first = self.cfg.study_name, self.plan.first_seed
        fixed = UNMEASURED | {"epochs": self.rung.epochs, "study_name": name and f"{name}-search"}
        return [
            with_settings(self.cfg, fixed | self.settings(candidate) | {"seed": seed})
            for candidate in self.rung.candidates
            for seed in range(first, first + self.plan.seeds)
        ]

    def take(self, outcomes: list[Outcome]) -> None:
        """Go on with the outcomes of the cells of the current rung.

        Raises:
            NoRateError: all candidates diverged.
            CellsMissingError: a cell failed for another reason.
        """
        self.cost |= {one.run: one.core_seconds for one in outcomes}
        losses = [self.validation_loss(one) for one in outcomes]
        count = self.plan.seeds
        means = [fmean(losses[first : first + count]) for first in range(0, len(losses), count)]
        try:
            self.rung = self.searching.send(means)
        except StopIteration as end:
            self.rung, self.choice = None, end.value
        except NoRateError as error:
            raise NoRateError(f"{error}: {self.name}") from None

    def validation_loss(self, outcome: Outcome) -> float:
        """Return the validation loss of a cell at its last epoch; infinity if its training diverged.

        Raises:
            CellsMissingError: it failed for another reason, which says nothing about its rate.
            LedgerError: its metrics are damaged, or lack the validation.
        """
        cfg = outcome.cfg
        if outcome.failure is None:
            for epoch, metric, value in validation(outcome.checkpoint):
                if metric == "loss" and epoch == cfg.epochs:
                    return value
            raise LedgerError(
                f"ledger entry {outcome.checkpoint} must have the validation at its end, got none: with another "
                f"ledger=, it is trained again"
            )
        if outcome.diverged:
            return math.inf
        tried = [LR, *([self.scale] if self.scale else [])]
        cell = "".join(f"{setting}={OmegaConf.select(cfg, setting):g}, " for setting in tried)
        cell += f"seed={cfg.seed}, epochs={cfg.epochs}"
        raise CellsMissingError(f"the search for {self.name} needs the cell with {cell}: {outcome.failure}")


def searches_of(cfgs: list[DictConfig]) -> list[Search]:
    """Return the search of each cell; cells that share one have the same object.

    Raises:
        ValueError: the study sets what the search is to choose, or uses a seed of the search.
    """
    plan = plan_of(cfgs[0])
    last = plan.first_seed + plan.seeds - 1
    by_setting: dict[str, Search] = {}
    found = []
    for cfg in cfgs:
        for seed in _seeds(cfg):
            if plan.first_seed <= seed <= last:
                raise ValueError(
                    f"seed must not be one of the search, {plan.first_seed} ... {last}, got {seed}: the rate would be "
                    f"chosen for its noise; search.first_seed moves them"
                )
        scale = starting_scale(cfg.pe) if plan.scales else None
        _require_no_scale_in_parts(cfg, plan)
        search = by_setting.setdefault(_common(cfg, scale), Search(cfg, plan, scale))
        for setting in (LR, scale):
            if setting and OmegaConf.select(cfg, setting) != (first := OmegaConf.select(search.cfg, setting)):
                raise ValueError(
                    f"{setting} must be left to the search, got a sweep over {first} and "
                    f"{OmegaConf.select(cfg, setting)}"
                )
        found.append(search)
    searches = list(by_setting.values())
    for search, name in zip(searches, _names([search.cfg for search in searches]), strict=True):
        search.name = name
        require_scale_unset(search.cfg, search.scale, "the search", "search.scales=[]")
    return found


def _names(cfgs: list[DictConfig]) -> list[str]:
    """Return the encoding and the settings of each search, for messages."""
    described = describe([settings_of(cfg) for cfg in cfgs]).drop(columns="seed")
    settings = {"depth": "model.depth"}  # columns of rows that have another name in a config
    return [
        ", ".join(f"{settings.get(str(name), name)}={value}" for name, value in row.items())
        for _, row in described.iterrows()
    ]


def require_scale_unset(cfg: DictConfig, scale: str | None, by: str, off: str) -> None:
    """Raise ValueError if the starting scale is not that of the encoding's file: somebody wants another.

    Args:
        scale: the setting; None: the encoding has none.
        by: what chooses it; off: the setting that leaves it as it is.
    """
    if scale is None:
        return
    path, _, option = scale.rpartition(".")
    leaf = OmegaConf.select(cfg, path)
    file = folders().file("pe", leaf.name)
    written = OmegaConf.load(file) if file else None
    usual = written.get(option) if isinstance(written, DictConfig) else None
    if usual is not None and leaf[option] != usual:
        raise ValueError(f"{scale} must be left to {by}, got {leaf[option]:g}: leave it out, or add {off}")


def _require_no_scale_in_parts(cfg: DictConfig, plan: Plan) -> None:
    """Raise ValueError if an encoding is made of several of which one has a starting scale, which is not searched."""
    if plan.scales and (scale := next(_scales_in_parts(cfg.pe), None)) is not None:
        raise ValueError(
            f"search.scales must be [] where a part of pe={cfg.pe.name} has a starting scale, which is not "
            f"searched, got {list(plan.scales)}, and {scale}"
        )


def _scales_in_parts(leaf: DictConfig, path: str = "pe") -> Iterator[str]:
    """Yield the settings that are starting scales of the parts that an encoding, or one within it, is made of."""
    for key in leaf:
        if _is_encoding(leaf[key]):
            yield from _scales_in_parts(leaf[key], f"{path}.{key!s}")
    for index, part in enumerate(leaf.get("parts") or ()):
        inner = f"{path}.parts[{index}]"
        if (scale := starting_scale(part, inner)) is not None:
            yield f"{scale} of {part.name}"
        yield from _scales_in_parts(part, inner)


def _seeds(cfg: DictConfig) -> Iterable[int]:
    """Return the seeds with which the study may train a cell."""
    decide = cfg.decide
    return [cfg.seed] if decide.baseline is None else range(looks_of(decide.seeds, decide.looks)[-1])


def _common(cfg: DictConfig, scale: str | None) -> str:
    """Return what the cells of one search have in common, as text: an encoding, its options and the setting."""
    settings = canonical(flatten(resolved(cfg)))
    return repr([(key, settings[key]) for key in settings if key != scale and not key.startswith(_NOT_SETTINGS)])
