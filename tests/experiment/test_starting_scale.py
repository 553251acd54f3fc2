"""The scale at which an encoding starts: which option it is, where seeds tune it, and what tables make of it."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from faults.sweeps import TINY
from helpers.configs import in_ledger, pe_settings
from pe_lab import config
from pe_lab.encodings.families.table import Learnable
from pe_lab.encodings.sizes import Sizes
from pe_lab.experiment.rounds import with_settings
from pe_lab.experiment.tuning import is_phased, starting_scale
from pe_lab.results.cell_rows import describe_cells, settings_of

FILES = sorted((config.config_folder() / "pe").glob("*.yaml"))


def cells(*overrides: str) -> list[DictConfig]:
    return in_ledger(None, *config.sweep_overrides([*TINY, "logger=none", "epochs=4", *overrides]))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_starting_scale_is_an_option_of_the_class_and_of_its_file(path: Path) -> None:
    leaf = pe_settings(path.stem)
    option = get_class(leaf._target_).start_scale
    if option is not None:
        assert option in inspect.signature(get_class(leaf._target_)).parameters
        assert option in leaf
        assert leaf[option] > 0
    setting = starting_scale(leaf)
    assert setting is None or OmegaConf.select(OmegaConf.create({"pe": leaf}), setting) > 0


def test_the_scale_is_that_of_vectors_that_are_added_to_token_embeddings() -> None:
    found = {path.stem: starting_scale(pe_settings(path.stem)) for path in FILES}
    assert {name: setting for name, setting in found.items() if setting} == {
        **dict.fromkeys(("abacus", "coupled", "learnable", "learnable_2d", "learnable_per_layer"), "pe.std"),
        **dict.fromkeys(("sinusoidal", "sinusoidal_2d", "sinusoidal_qk", "sininit", "random"), "pe.size"),
        **dict.fromkeys(("integer", "normalized", "continuous", "fourier"), "pe.size"),
        "randomized_learnable": "pe.encoding.std",
        "randomized_sinusoidal": "pe.encoding.size",
        "shape": "pe.encoding.size",
    }


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ("[rope,alibi]", None),
        ("[rope,learnable]", "pe.parts.1.std"),
        ("[randomized_learnable]", "pe.parts.0.encoding.std"),
        ("[sinusoidal,learnable]", "pe.parts.0.size"),
    ],
)
def test_the_scale_of_a_sum_is_that_of_its_first_part_that_has_one(parts: str, expected: str | None) -> None:
    (cfg,) = cells("pe=sum", f"pe.parts={parts}")
    assert starting_scale(cfg.pe) == expected
    if expected is not None:
        changed = with_settings(cfg, {expected: 0.25})
        assert settings_of(changed)[expected] == 0.25
        assert {key for key, value in settings_of(changed).items() if settings_of(cfg).get(key) != value} == {expected}


def test_one_scale_per_setting_does_not_make_another_encoding() -> None:
    """The scale that was chosen in a setting is no part of an encoding's name; one that the study sweeps is."""

    def labels(*scales: tuple[float, int]) -> set[str]:
        (cfg,) = cells("pe=learnable")
        settings = [settings_of(OmegaConf.merge(cfg, {"pe": {"std": s}, "model": {"depth": d}})) for s, d in scales]
        return set(describe_cells(settings)["pe"])

    assert labels((0.02, 1), (1.0, 2)) == {"learnable"}
    assert labels((0.02, 1), (1.0, 1)) == {"learnable std=0.02", "learnable std=1"}
    assert labels((0.02, 1), (1.0, 1), (1.0, 2)) == {"learnable std=0.02", "learnable std=1"}


def test_the_scale_of_an_encoding_within_encodings_is_no_part_of_its_name_either() -> None:
    (cfg,) = cells("pe=randomized_learnable")
    cfg.pe.encoding = OmegaConf.merge(cfg.pe, {"name": "inner"})
    setting = starting_scale(cfg.pe)
    assert setting == "pe.encoding.encoding.std"
    chosen = [with_settings(cfg, {setting: scale, "model.depth": depth}) for scale, depth in ((0.02, 1), (1.0, 2))]
    assert set(describe_cells([settings_of(one) for one in chosen])["pe"]) == {"randomized_learnable"}


class Mine(Learnable):
    """An encoding of a user, whose starting scale has a name of its own."""

    start_scale = "beginning"

    def __init__(self, sizes: Sizes, *, beginning: float = 0.02, **options: Any) -> None:
        super().__init__(sizes, std=beginning, **options)


def test_a_starting_scale_that_tables_do_not_know_is_refused() -> None:
    """Tables would make an encoding of each scale that is chosen for it, which nothing else is compared with."""
    leaf = OmegaConf.create({"_target_": f"{__name__}.Mine", "_partial_": True, "name": "mine", "beginning": 0.02})
    line = f"start_scale of {__name__}.Mine must be std or size to be tuned, got 'beginning'"
    with pytest.raises(ValueError, match="start_scale") as caught:
        starting_scale(leaf)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pe=rope"], False),
        (["pe=drope"], True),
        (["pe=sum", "pe.parts=[drope,alibi]"], True),
        (["pe=randomized_rope", "pe@pe.encoding=drope"], True),
    ],
)
def test_an_encoding_is_phased_if_one_that_it_is_made_of_is(words: list[str], expected: bool) -> None:
    (cfg,) = cells(*words)
    assert is_phased(cfg.pe) is expected
