"""The registry: every entry has its fields and composes, and what lacks one is refused in one line."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pe_lab import config
from pe_lab.replication import Claimed, load_entries
from pe_lab.replication.entry import training_overrides
from pe_lab.replication.ledger_values import DERIVED_METRICS, compose_cell
from pe_lab.training.metrics import metric_directions

ENTRIES = load_entries()
RUN = {name: entry for name, entry in ENTRIES.items() if not entry.lacks and not entry.studies}
CLAIMS = {name: entry for name, entry in ENTRIES.items() if entry.studies}

TABLE: dict[str, Any] = {
    "title": "A paper",
    "paper": "https://arxiv.org/abs/0000.00000",
    "source": "table 1",
    "seen": True,
    "unit": "share",
    "tolerance": 0.1,
    "measured": {"short": "exact_match", "long": "exact_match@2,4"},
    "setting": ["data=copy"],
    "cells": {
        "one": {
            "says": "It works.",
            "setting": ["pe=rope"],
            "published": {"short": [1, 0.9, 0.95], "long": {"mean": 0.5, "sd": 0.1, "seeds": 5}},
            "minutes": 3,
        }
    },
}


CLAIM: dict[str, Any] = {key: TABLE[key] for key in ("title", "paper", "source", "seen", "unit", "tolerance")} | {
    "cells": {
        "two": {
            "says": "One is better.",
            "minutes": 3,
            "studies": {"mine": ["pe=rope,alibi", "data=copy"]},
            "universe": {"model.depth": [1, 2], "optimizer.lr": [0.001, 0.003, 0.01]},
            "tests": [
                {
                    "says": "loss of `{pe}`",
                    "each": {"data": ["copy", "sort"], "pe": ["rope"]},
                    "value": {"metric": "loss", "length": "> 1"},
                    "minus": {"pe": "alibi"},
                    "below": 0,
                },
                {"says": "rank", "value": {"metric": "rank", "layer": "max"}, "over": {"layer": 0}, "above": 0.5},
            ],
        }
    }
}


def written(folder: Path, table: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "a.yaml").write_text(table if isinstance(table, str) else yaml.safe_dump(table))
    return folder


def changed(path: str, value: Any, table: dict[str, Any] = TABLE) -> dict[str, Any]:
    """Return the table with a key changed, or without it where the value is None."""
    table = deepcopy(table)
    *parents, key = path.split(".")
    place: Any = table
    for parent in parents:
        place = place[int(parent) if parent.isdecimal() else parent]
    if value is None:
        place.pop(key, None)
    else:
        place[key] = value
    return table


def test_a_table_is_read_as_entries(tmp_path: Path) -> None:
    (entry,) = load_entries(written(tmp_path, TABLE)).values()
    assert entry.name == "a/one"
    assert entry.setting == ("data=copy", "pe=rope")
    assert entry.overrides() == ["data=copy", "pe=rope", "evaluate.lengths=[1,2,4]"]
    assert (entry.seeds, entry.minutes, entry.timed, entry.lacks) == (3, 3.0, False, None)
    short, long = entry.values["short"], entry.values["long"]
    assert (short.metric, short.lengths, long.lengths) == ("exact_match", (1.0,), (2.0, 4.0))
    assert short.published.mean == pytest.approx(0.95)
    assert short.published.sd == pytest.approx(0.05)
    assert (short.published.seeds, long.published.seeds) == (3, 5)


@pytest.mark.parametrize("key", ["title", "paper", "source", "seen", "unit", "tolerance", "measured"])
def test_a_table_without_a_field_is_refused_in_one_line(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match=rf"^replication/a.yaml: one.* {key}") as refused:
        load_entries(written(tmp_path, changed(key, None)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("cells.one.says", None, "says"),
        ("cells.one.published", None, "published"),
        ("cells.one.minutes", None, "minutes"),
        ("cells.one.minutes", -1, "minutes"),
        ("cells.one.minutes", True, "minutes"),
        ("cells.one.published.short", "1", "short"),
        ("cells.one.published.short", [1], "short"),
        ("cells.one.published.short", {"sd": 1}, "mean"),
        ("cells.one.published.long.sd", -1, "sd"),
        ("cells.one.published.long.seeds", 0, "seeds"),
        ("cells.one.published.other", 1, "other"),
        ("cells.one.seeds", 2, "seeds"),
        ("cells.one.seen", "yes", "seen"),
        ("cells.one.setting", "pe=rope", "setting"),
        ("cells.one.sed", 1, "sed"),
        ("measured.long", "exact match", "metric"),
        ("tolerance", 0, "tolerance"),
        ("unit", "", "unit"),
        ("cells", {}, "cells"),
        ("cells", {"a b": {"seeds": 3}}, "a b"),
        ("cells", {"one": 1}, "cell"),
        ("nothing", 1, "nothing"),
    ],
)
def test_a_wrong_field_is_refused_in_one_line(tmp_path: Path, path: str, value: Any, named: str) -> None:
    with pytest.raises(ValueError, match=rf"^replication/a.yaml.*{named}") as refused:
        load_entries(written(tmp_path, changed(path, value)))
    assert "\n" not in str(refused.value)


def test_a_claim_is_read_with_its_tests_and_its_universe(tmp_path: Path) -> None:
    claim, universe = load_entries(written(tmp_path, CLAIM)).values()
    assert list(claim.values) == ["data copy: loss of `rope`", "data sort: loss of `rope`", "rank"]
    loss, _, rank = claim.values.values()
    assert isinstance(loss, Claimed)
    assert isinstance(rank, Claimed)
    assert loss.value == {"data": "copy", "pe": "rope", "metric": "loss", "length": "> 1"}
    assert (loss.others, loss.ratio, loss.rule, loss.bound) == (({"pe": "alibi"},), False, "below", 0)
    assert (rank.others, rank.ratio, rank.rule, rank.bound) == (({"layer": 0},), True, "above", 0.5)

    assert universe.name == "a/two/universe"
    assert len(universe.values) == 2 * 3 * 3
    assert universe.minutes == 2 * 3 * 3
    asked = universe.values["model.depth 2, optimizer.lr 0.01: rank"]
    assert isinstance(asked, Claimed)
    assert asked.value == {"metric": "rank", "layer": "max", "depth": 2, "optimizer.lr": 0.01}
    words = ["pe=rope,alibi", "data=copy"]
    assert training_overrides(claim, 3) == {"mine": [*words, "seed=range(3)", "study_name=mine"]}
    (trained,) = training_overrides(universe, 3).values()
    assert trained[:4] == [*words, "model.depth=1,2", "optimizer.lr=0.001,0.003,0.01"]


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("source", None, "source"),
        ("unit", None, "unit"),
        ("tolerance", None, "tolerance"),
        ("cells.two.tests.0.below", None, "rule"),
        ("cells.two.tests.0.above", 0, "rule"),
        ("cells.two.tests.1.minus", {"layer": 1}, "minus"),
        ("cells.two.tests.1.above", -1, "ratio"),
        ("cells.two.tests.0.below", "0", "below"),
        ("cells.two.tests.0.value", {"length": 1}, "metric"),
        ("cells.two.tests.0.value.length", "> one", "length"),
        ("cells.two.tests.0.value.length", [], "length"),
        ("cells.two.tests.0.value.length", None, "twice"),
        ("cells.two.tests.0.each", {"data": "copy"}, "each.data"),
        ("cells.two.tests.0.says", None, "says"),
        ("cells.two.tests.0.equal", 0, "equal"),
        ("cells.two.tests", [], "tests"),
        ("cells.two.studies", None, "studies"),
        ("cells.two.studies.mine", "pe=rope", "mine"),
        ("cells.two.published", {"short": 1}, "both"),
        ("cells.two.universe", {}, "universe"),
        ("cells.two.universe", {"model.depth": [1, 1]}, "model.depth"),
        ("cells.two.universe", {"model.depth": 1}, "model.depth"),
        ("cells.two.universe", {"data": ["copy", "sort"]}, "data"),
        ("cells.two.studies.other", ["pe=rope"], "one study"),
    ],
)
def test_a_wrong_field_of_a_claim_is_refused_in_one_line(tmp_path: Path, path: str, value: Any, named: str) -> None:
    table = changed(path, value, CLAIM)
    if named == "twice":
        table["cells"]["two"]["tests"].append(table["cells"]["two"]["tests"][1])
    with pytest.raises(ValueError, match=rf"^replication/a.yaml: two.*{named}") as refused:
        load_entries(written(tmp_path, table))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", CLAIMS)
def test_every_study_of_a_claim_composes_at_both_ends_of_its_universe(name: str) -> None:
    entry = CLAIMS[name]
    for end in (0, -1) if entry.everywhere else (0,):
        grid = [f"{key}={values[end]}" for key, values in entry.universe.items() if entry.everywhere]
        for words in entry.studies.values():
            pe = [] if any(word.startswith("pe=") for word in words) else ["pe=rope"]
            jobs = config.sweep_overrides([*words, *grid, *pe, "seed=0", "trainer.device=cpu"])
            assert config.expand_overrides(jobs, multirun=True), name


@pytest.mark.parametrize("text", ["a: [", "", "- 1", "a"])
def test_a_file_that_is_no_table_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"^replication/a.yaml") as refused:
        load_entries(written(tmp_path, text))
    assert "\n" not in str(refused.value)


def test_a_run_needs_a_setting_and_what_the_package_lacks_does_not(tmp_path: Path) -> None:
    table = changed("setting", None)
    table["cells"]["one"].pop("setting")
    with pytest.raises(ValueError, match="one must have a setting"):
        load_entries(written(tmp_path, table))
    table["cells"]["one"]["lacks"] = "encoder"
    table["cells"]["one"].pop("minutes")
    (entry,) = load_entries(written(tmp_path, table)).values()
    assert entry.lacks == "encoder"


def test_a_setting_that_does_not_compose_is_refused_with_the_entry(tmp_path: Path) -> None:
    (entry,) = load_entries(written(tmp_path, changed("setting", ["data=copies"]))).values()
    with pytest.raises(ValueError, match=r"^a/one: .*copies") as refused:
        compose_cell(entry, [])
    assert "\n" not in str(refused.value)


def test_users_add_entries_of_their_own(tmp_path: Path) -> None:
    written(tmp_path / "replication", "# A table\n" + yaml.safe_dump(TABLE))
    with config.add_config_dirs(["--config-dir", str(tmp_path)]):
        assert set(load_entries()) == {*ENTRIES, "a/one"}


def test_there_are_a_hundred_entries_of_several_papers() -> None:
    assert len(ENTRIES) >= 100
    assert len({entry.paper for entry in ENTRIES.values()}) >= 5


@pytest.mark.parametrize("table", sorted({name.partition("/")[0] for name in RUN}))
def test_every_entry_that_can_run_composes_and_measures_what_it_says(table: str) -> None:
    for name, entry in RUN.items():
        if name.partition("/")[0] == table:
            known = metric_directions(compose_cell(entry, ["seed=0", "trainer.device=cpu"]).dataset)
            for label, value in entry.values.items():
                assert DERIVED_METRICS.get(value.metric, (value.metric,))[0] in known, f"{name}, {label}"


def test_settings_are_taken_by_a_sweep_of_seeds() -> None:
    """As `train` gives them to pe-lab run -m; one entry of each set of settings."""
    by_keys = {tuple(word.partition("=")[0] for word in entry.overrides()): entry for entry in RUN.values()}
    for entry in by_keys.values():
        words = config.sweep_overrides([*entry.overrides(), "seed=range(2)", "trainer.device=cpu"])
        assert [cfg.seed for cfg in config.expand_overrides(words, multirun=True)] == [0, 1], entry.name


def test_numbers_that_were_seen_have_a_paper() -> None:
    for name, entry in ENTRIES.items():
        assert entry.paper.startswith("https://arxiv.org/abs/") or not entry.seen, name
