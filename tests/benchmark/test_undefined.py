"""Which encodings fit which tasks: as the package says it, and as trying it says."""

import pandas as pd
import pytest

from pe_lab import config
from pe_lab.benchmark import undefined as module
from pe_lab.benchmark.tasks import tasks
from pe_lab.benchmark.undefined import COMBINATIONS, FILE, defined, measured, undefined


def test_pairs_are_of_encodings_and_tasks_with_one_line_of_reason_each() -> None:
    names = {path.stem for path in (config.folder() / "pe").glob("*.yaml")}
    found = undefined()
    assert {pe for pe, _ in found} <= names - set(COMBINATIONS)
    assert {task for _, task in found} <= {task.name for task in tasks()}
    assert all(reason and "\n" not in reason for reason in found.values())
    assert sum(len(defined(task.name)) for task in tasks()) == (len(names) - 3) * 13 - len(found)
    assert "rope" in defined("place")
    assert "forgetting" not in defined("place")


def test_causal_encodings_do_not_fit_bidirectional_tasks_and_grids_fit_one_task() -> None:
    reasons = undefined()
    assert reasons["forgetting", "place"] == (
        "forgetting is defined for causal attention only, this is bidirectional: use alibi"
    )
    assert ("forgetting", "copy") not in reasons
    assert {task for pe, task in reasons if pe == "rope_2d"} == {task.name for task in tasks()} - {"digits"}
    assert "needs marks of tokens" in reasons["abacus", "copy"]
    assert ("abacus", "addition") not in reasons


def test_trying_an_encoding_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    few = tuple(task for task in tasks() if task.name in ("place", "addition", "digits"))
    monkeypatch.setattr(module, "tasks", lambda: few)
    names = ["rope", "forgetting", "rope_2d", "abacus"]
    found = measured(names)
    written = [(*pair, reason) for pair, reason in undefined().items() if pair[0] in names]
    assert set(found.itertuples(index=False, name=None)) == {
        line for line in written if line[1] in ("place", "addition", "digits")
    }
    assert len(found) == 6


@pytest.mark.slow
def test_the_file_is_what_trying_all_says() -> None:
    """Otherwise `python .ci/update.py --only undefined` writes it."""
    pd.testing.assert_frame_equal(measured(), pd.read_csv(FILE, keep_default_na=False))
