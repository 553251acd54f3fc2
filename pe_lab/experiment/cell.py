"""A cell: what a config means on this machine, and its identity."""

import inspect
import time
from collections.abc import Callable
from functools import cached_property, partial, wraps
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from hydra.utils import get_class, get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from pe_lab.attention import IMPLEMENTATIONS, resolve
from pe_lab.attention.dropout import Dropout
from pe_lab.data.base import Dataset, Floors
from pe_lab.encodings import policies
from pe_lab.encodings.base import PositionalEncoding, Sizes
from pe_lab.encodings.options import LONGEST, Revised, within
from pe_lab.experiment.memory import WEIGHT, Claims, Room
from pe_lab.experiment.source import origin
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import Run
from pe_lab.model.transformer import Transformer
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import LedgerError
from pe_lab.tracking.wandb_mode import agent_run
from pe_lab.training import metrics
from pe_lab.training.optimization import Optimization

if TYPE_CHECKING:
    from pe_lab.experiment.executor import Journey

POLL = 0.3  # seconds between two looks at a run that somebody else serves


def options(leaf: DictConfig, made: type[Revised]) -> dict[str, Any]:
    """A leaf of the config as it enters the identity: its options and its class's revision.

    Import paths of this package are left out, and so are options added later that stand at their neutral value. Of
    classes that are not of this package, import path and source enter: see `origin`. A leaf within it enters in the
    same way.

    Raises:
        ValueError: the source of such a class cannot be read.
    """
    given = {key: value for key, value in OmegaConf.to_container(leaf, resolve=True).items() if key[0] != "_"}
    neutral = made.neutral
    kept = {key: value for key, value in given.items() if key not in neutral or value != neutral[key]}
    for key in kept:
        if OmegaConf.is_dict(leaf[key]) and "_target_" in leaf[key]:
            kept[key] = options(leaf[key], get_class(leaf[key]._target_))
    makers = [get_object(leaf["_target_"])] if "_target_" in leaf else []  # the class, or a function that makes one
    return kept | {"revision": made.revision} | origin(made, *makers)


def name(cfg: DictConfig, epochs: int) -> str:
    """For people: encoding, task if it is not `structured`, depth, epochs, seed."""
    task = "" if cfg.data.name == "structured" else f"{cfg.data.name}-"
    return f"{cfg.pe.name}-{task}d{cfg.model.depth}-e{epochs}-s{cfg.seed}"


def _refusing(method: Callable[["Cell"], None]) -> Callable[["Cell"], None]:
    """Let an entry of the ledger that cannot be used refuse this cell, and no other.

    The cell then counts as missing, its failure says why, and nothing more is done of it.
    """

    @wraps(method)
    def unless_refused(cell: "Cell") -> None:
        if cell.refused is None:
            try:
                method(cell)
            except (LedgerError, OSError) as error:
                cell.refused = in_one_line(error)

    return unless_refused


class Cell:
    """What a config means on this machine. Making one is cheap: no sequences, no model.

    Args:
        cfg: composed, and tested by config.check.

    Raises:
        UnfitError: the encoding is not made for the task.
        ValueError: the parts do not fit each other otherwise.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg
        self.epochs: int = cfg.epochs
        self.logged = False  # whether its run was told, all of it or a second time, by this process
        self.refused: str | None = None  # what keeps the ledger from being used for it, until somebody sees to that
        self.device = torch.device(_device(cfg.trainer.device))
        self.dataset: Dataset = _maker(cfg, "data", seed=cfg.seed)(seed=cfg.seed)
        if cfg.trainer.batch_size > self.dataset.size("train"):
            raise ValueError(
                f"trainer.batch_size must be at most the number of training sequences, "
                f"{self.dataset.size('train')} in {cfg.data.name}, got {cfg.trainer.batch_size}"
            )
        if self.dataset.task.length > LONGEST:
            raise ValueError(
                f"data={cfg.data.name} must have sequences of at most {LONGEST} tokens, got {self.dataset.task.length}"
            )
        self._datasets: dict[float, Dataset] = {1: self.dataset}
        sizes = self.dataset.task.sizes(cfg.model.width, cfg.model.num_heads)
        self.encoding: Callable[[Sizes], PositionalEncoding] = _maker(cfg, "pe", sizes)
        room = Room(self.device)
        room.need_weights(cfg, self.dataset, WEIGHT)  # no less, whatever is missing
        with Claims(room, what := f"pe={cfg.pe.name}"):
            encoding = self.encoding(sizes)
        self._claimed = room.needs[what] * (cfg.model.depth if encoding.per_layer else 1)
        self.encoding_class = type(encoding)
        self.implementation, self._held = self._attention(encoding.to(self.device))
        self._check_requests()

    def _attention(self, encoding: PositionalEncoding) -> tuple[str, dict[str, int]]:
        """The attention that will run, found by asking the encoding what it needs on a short sequence.

        Returns:
            Its name, and the bytes that are held at least for each pair of positions: in a batch of "training", and in
            one sequence by what measures "with" that and what measures "later", when no weights are dropped.
        """
        model, length = self.cfg.model, min(16, self.dataset.task.length)
        layout = self.dataset.task.layout(torch.tensor([length], device=self.device), length)
        h = torch.zeros(1, length, model.width, device=self.device)
        q = h.view(1, length, model.num_heads, -1).transpose(1, 2)
        dropout = None
        if model.attention_dropout:
            dropout = Dropout(model.attention_dropout, torch.zeros((), dtype=torch.long, device=self.device))
        with torch.no_grad():
            layout = encoding.locate(layout)
            terms = encoding.terms(h, layout)
            name = resolve(self.cfg.attention.implementation, q, terms, layout, dropout)
            later = resolve(self.cfg.attention.implementation, q, terms, layout)
        held, batch = IMPLEMENTATIONS[name].bytes_per_pair, q.expand(self.cfg.trainer.batch_size, -1, -1, -1)
        return name, {
            "training": held(batch, terms, layout),
            "with": held(q, terms, layout),
            "later": IMPLEMENTATIONS[later].bytes_per_pair(q, terms, layout),
        }

    def require_room(self) -> None:
        """Raises ValueError if this machine's memory cannot hold what is missing of the cell: its training, records."""
        cfg, of = self.cfg, f"in attention of pe={self.cfg.pe.name}"
        there = Ledger(cfg.ledger).find(self.identity)
        if not (trained := there.done(self.epochs)):
            room = Room(self.device)
            room.need_all_but_encoding(cfg, self.dataset)
            room.need(self._claimed, f"pe={cfg.pe.name}")
            tokens, batch = self.dataset.task.length, cfg.trainer.batch_size
            what = f"trainer.batch_size={batch} with the pairs of {tokens} tokens {of}"
            room.need(self._held["training"] * tokens**2, what)
        for request in self.requests:
            factor = request.get("length", 1)
            if factor != 1 and not (trained and Records(there, self.epochs).has(request)):
                room, longer = Room(self.device), self.dataset_at(factor)
                room.need_sequences(cfg, longer, "test")
                what = f"evaluate.lengths={factor:g} with the pairs of {longer.task.length} tokens {of}"
                room.need(self._held["later" if trained else "with"] * longer.task.length**2, what)

    @cached_property
    def requests(self) -> list[dict[str, Any]]:
        """What is to be measured on the trained model beyond the test itself, each by all that determines it."""
        asked = self.cfg.evaluate
        requests: list[dict[str, Any]] = [
            {"kind": "length", "length": length, "policy": policy, "offset": offset}
            | {"revision": [metrics.revision, policies.revision]}
            for length, policy, offset in product(asked.lengths, asked.policy, asked.offset)
            if (length, policy, offset) != (1, "raw", 0)
        ]
        if self.cfg.probe:
            from pe_lab.probes import PROBES  # statistics are loaded when they are asked for

            lengths = dict.fromkeys([1, *asked.lengths])  # as trained, and at all others that are asked for
            for probe, length in product(self.cfg.probe, lengths):
                longer = {} if length == 1 else {"length": length}
                requests.append({"kind": "probe", "probe": probe, "revision": PROBES[probe].revision} | longer)
        return requests

    def _check_requests(self) -> None:
        """Raises ValueError if the data or the encoding have no such length, policy or offset."""
        cfg, length = self.cfg, self.dataset.task.length
        for factor in cfg.evaluate.lengths:
            if factor * length > LONGEST:
                raise ValueError(
                    f"evaluate.lengths must lead to at most {LONGEST} tokens, got {factor:g} times {length}"
                )
        for request in self.requests:
            if request["kind"] != "length":
                continue
            task = self.dataset_at(request["length"]).task
            encoding = self.encoding(self.dataset.task.sizes(cfg.model.width, cfg.model.num_heads))
            layout = task.layout(torch.tensor([task.length]), task.length)
            try:
                with within("evaluate"):
                    under = policies.under(request["policy"], encoding, request["length"])
                under.locate(layout.shifted(request["offset"]))
            except ValueError as error:
                asked = f"evaluate.lengths={request['length']:g}, evaluate.offset={request['offset']}"
                raise ValueError(f"{asked}: {error}") from None

    def dataset_at(self, factor: float) -> Dataset:
        """The dataset, or that with `factor` times its length."""
        if factor not in self._datasets:
            self._datasets[factor] = self.dataset.longer(factor)
        return self._datasets[factor]

    def release(self) -> None:
        """Drop the sequences that were made: a sweep keeps its cells, and not what they were trained on."""
        self.dataset = _maker(self.cfg, "data", seed=self.cfg.seed)(seed=self.cfg.seed)
        self._datasets = {1: self.dataset}

    def floors(self, factor: float = 1) -> Floors:
        """What results on the test split are held against; the first cell that asks computes them."""
        dataset = self.dataset_at(factor)
        identity = {"data": self.identity["data"], "seed": self.cfg.seed, "length": factor}
        identity["revision"] = dataset.floors_revision
        return Ledger(self.cfg.ledger).kept("floors", identity, lambda: dataset.floors("test"))

    def autocast(self) -> torch.autocast:
        """What training and evaluation run under."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.cfg.trainer.precision == "bf16-mixed")

    def name(self, epochs: int | None = None) -> str:
        """See `name`; of another stop on the run, if one is given."""
        return name(self.cfg, epochs or self.epochs)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What determines the training; its hash is the run's name.

        Raises:
            ValueError: the source of a class that is not of this package cannot be read.
        """
        cfg = self.cfg
        identity = {
            "pe": options(cfg.pe, self.encoding_class),
            "data": options(cfg.data, type(self.dataset)) | self.dataset.content(),
            "model": options(cfg.model, Transformer),
            "optimizer": options(cfg.optimizer, Optimization),
            "batch_size": cfg.trainer.batch_size,
            "clip": cfg.trainer.clip,
            "seed": cfg.seed,
            "device": self.device.type,
            "attention": self.implementation,
            "precision": cfg.trainer.precision,
        }
        revision = IMPLEMENTATIONS[self.implementation].revision
        if revision > 1:
            identity["attention_revision"] = revision
        if cfg.optimizer.schedule == "cosine":  # looks at the end: each number of epochs is a run of its own
            identity["epochs"] = self.epochs
        return identity

    @cached_property
    def run(self) -> Run:
        return Ledger(self.cfg.ledger).run(self.identity)

    @_refusing
    def mend(self) -> None:
        """Set aside what is damaged of what the ledger has of it."""
        self.run.mend(self.epochs)
        if self.trained:
            for request in self.requests:
                self.records.mend(request)

    @_refusing
    def request(self) -> None:
        """Write down that this process wants the cell; the records of earlier failures are cleared."""
        self.run.request(self.epochs)
        if self.trained:
            for request in self.requests:
                self.records.forget(request)

    @_refusing
    def withdraw(self) -> None:
        """Take that back."""
        self.run.withdraw(self.epochs)

    def fail(self, reason: str) -> None:
        """Record why the cell is not trained, or what it lacks not measured."""
        if not self.trained:
            self.run.fail(self.epochs, reason, None)
            return
        for request in self.requests:
            if not self.records.has(request):
                self.records.fail(request, reason)

    def serve(self, wait: bool) -> None:
        """See to it that the cell is trained, as long as somebody wants it, and measured.

        The wish has been written; now the lease is tried. Its owner serves every wanted stop of the run, releases
        it, and looks again whether this cell is missing. Another process that holds it finds the wish.

        Args:
            wait: for another process that holds the lease; otherwise return at once.

        Raises:
            Exception: what ended the training; it is recorded with the checkpoints that could not be reached.
        """
        if self.refused is not None:
            return
        run = self.run
        while self.missing and self.failure is None:
            if self.trained:
                with self.records.lease() as free:
                    pass
                if free:  # not while somebody else measures: the model would be loaded to wait for him
                    self._journey().measure()
                    continue
            else:
                with run.lease() as mine:
                    if mine:
                        if self.epochs not in run.requested():
                            return
                        self._journey().serve_all()
                        continue
            if self.missing and self.failure is None:
                if not wait:
                    return
                time.sleep(POLL)
        if self.trained and self.wants_agent_run:
            self._journey().replay()

    def _journey(self) -> "Journey":
        from pe_lab.experiment.executor import Journey  # Lightning is loaded when there is something to do

        return Journey(self)

    @property
    def records(self) -> Records:
        """What was measured on the trained cell."""
        return Records(self.run, self.epochs)

    @property
    def trained(self) -> bool:
        """Whether the cell is in the ledger."""
        return self.refused is None and self.run.done(self.epochs)

    @property
    def wants_agent_run(self) -> bool:
        """Whether a W&B agent waits for the run of this cell, and it was not opened, or lost on the way."""
        return not self.logged and self.cfg.logger.name == "wandb" and agent_run() is not None

    @property
    def missing(self) -> bool:
        """Whether the cell, or something that is to be measured on it, is not in the ledger."""
        return not self.trained or not all(map(self.records.has, self.requests))

    @property
    def failure(self) -> dict[str, Any] | None:
        """The record of what keeps the cell from being trained, or all that is missing from being measured, or None."""
        if self.refused is not None:
            return {"reason": self.refused}
        if not self.trained:
            return self.run.failure(self.epochs)
        records = self.records
        failures = [records.failure(request) for request in self.requests if not records.has(request)]
        return failures[0] if failures and all(failures) else None


def _maker(cfg: DictConfig, group: str, *given: Any, **named: Any) -> Callable[..., Any]:
    """What makes the object of a group when it is called with these arguments.

    Raises:
        ValueError: the class or function that the group names does not take its options.
    """
    made, leaf = instantiate(cfg[group]), cfg[group]
    if not isinstance(made, partial):
        raise ValueError(f"{group}._partial_ must be true, got {leaf.get('_partial_')}")
    try:
        inspect.signature(made.func).bind(*given, *made.args, **made.keywords, **named)
    except TypeError as error:
        options = ", ".join(str(key) for key in leaf if str(key)[0] != "_")
        start = "; start from pe=none, which has name alone" if group == "pe" else ""
        raise ValueError(f"{group}._target_ must take the options {options}: {leaf._target_} {error}{start}") from None

    def make(*given: Any, **named: Any) -> Any:
        with within(group):  # errors about `theta` are about the setting `pe.theta`
            return made(*given, **named)

    return make


def _device(asked: str) -> str:
    if asked == "cuda" and not torch.cuda.is_available():
        raise ValueError("trainer.device=cuda needs a CUDA device, and there is none; use trainer.device=cpu or auto")
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return asked
