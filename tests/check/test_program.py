"""python -m pe_lab.check: a line per promise, and an exit status."""

import subprocess
import sys
from pathlib import Path

import pytest

from pe_lab.check import encodings, models
from pe_lab.check.__main__ import main, read_overrides
from pe_lab.check.check_report import outcome_line, summary_line
from pe_lab.check.datasets import PROMISES
from pe_lab.check.promise import PromiseOutcome

MODULE = """
import torch

from pe_lab.data.bag import Bag
from pe_lab.encodings import PositionalEncoding
from pe_lab.encodings.options import Positive


class ByIndex(PositionalEncoding):
    def __init__(self, sizes, name="by_index", rate: Positive = 1.0):
        super().__init__(sizes, name)
        self.rate = rate

    def embed(self, x, layout):
        index = torch.arange(x.shape[1]) * self.rate / 10
        return x + torch.sin(index)[:, None] * torch.linspace(-1, 1, x.shape[-1])


class Renamed(Bag):
    def __init__(self, seed, name="renamed", train=100):
        super().__init__(seed, "other", train=train, validation=50, test=50, demo=10)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with an encoding and a dataset that each break a promise."""
    (tmp_path / "checked_module.py").write_text(MODULE)
    for group, name, cls in (("pe", "by_index", "ByIndex"), ("data", "renamed", "Renamed")):
        (tmp_path / "conf" / group).mkdir(parents=True)
        option = "rate: 1.0" if group == "pe" else "train: 100"
        text = f"# mine\n_target_: checked_module.{cls}\n_partial_: true\nname: {name}\n{option}\n"
        (tmp_path / "conf" / group / f"{name}.yaml").write_text(text)
    return tmp_path


@pytest.mark.parametrize("command", [pytest.param(["pe_lab.check"], marks=pytest.mark.slow), ["pe_lab", "check"]])
def test_a_users_encoding_is_reported_with_a_line_per_promise(project: Path, command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command, "pe=by_index,none", "--config-dir", "conf"],
        cwd=project,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    mine, none, rest = done.stdout.split("\n\n")
    assert rest == ""
    first, *lines, last = mine.splitlines()
    assert first == "pe=by_index, checked_module.ByIndex"
    assert [text[8:74].strip() for text in lines] == [*encodings.PROMISES, *models.PROMISES]
    broken = [text for text in lines if text.startswith("BROKEN")]
    assert len(broken) == 7
    assert "logits of the same sequence, padded left and right, differ by" in mine
    assert last == f"pe=by_index: {len(lines) - 9} promises hold, 7 are broken, 2 do not apply"
    assert none.splitlines()[0] == "pe=none, pe_lab.encodings.base.PositionalEncoding"
    assert "BROKEN" not in none


def test_a_users_dataset_is_reported(project: Path, program, monkeypatch: pytest.MonkeyPatch) -> None:
    status, lines, err = program(main, "data=renamed", f"--config-dir={project / 'conf'}", "data.train=80", "seed=3")
    assert (status, err) == (1, "")
    assert lines[0] == "data=renamed, checked_module.Renamed"
    assert lines[1].startswith("BROKEN  it keeps the name it is given")
    assert lines[len(PROMISES) + 1] == "data=renamed: 9 promises hold, 1 are broken, 1 do not apply"


def test_what_keeps_its_promises_ends_with_status_0(program) -> None:
    status, lines, err = program(main, "pe=alibi", "model.num_heads=4", "model.width=32", "pe.name=alibi")
    assert (status, err) == (0, "")
    assert lines[-2] == "pe=alibi: 29 promises hold, 0 are broken, 1 do not apply"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "one of pe=NAME and data=NAME must be given, got neither"),
        (["pe=rope", "data=bag"], "one of pe=NAME and data=NAME must be given, got pe=rope data=bag"),
        (["rope"], "one of pe=NAME and data=NAME must be given, got rope"),
        (["pe=ropes"], "pe must be one of abacus, "),
        (["pe=rope,"], "pe must be one of abacus, "),
        (["data=bags"], "data must be one of addition, "),
        (["pe=rope", "epochs=3"], "a check of pe takes pe.<option>, model.width, model.num_heads, got 'epochs=3'"),
        (["pe=rope", "data.length=3"], "a check of pe takes pe.<option>, model.width, model.num_heads, got 'data"),
        (["pe=rope", "model.head_dim=4"], "a check of pe takes pe.<option>, model.width, model.num_heads, got 'model"),
        (["pe=rope", "pe.theta"], "a check of pe takes pe.<option>, model.width, model.num_heads, got 'pe.theta'"),
        (["data=bag", "pe.theta=1"], "a check of data takes data.<option>, seed, got 'pe.theta=1'"),
        (["pe=rope", "pe.theta=-1"], "pe.theta must be a positive number, got -1"),
        (["pe=rope", "pe.foo=1"], "pe=rope has the settings"),
        (["pe=rope", "model.width=15"], "model.width must be divisible by model.num_heads, got model.width=15"),
        (["data=bag", "data.vocabulary=1", "data.length=1"], "data.length and vocabulary must allow for"),
        (["pe=rope", "--config-dir=nowhere"], "--config-dir must be a folder of configs, got 'nowhere'"),
    ],
)
def test_bad_input_is_refused_in_one_line(program, words: list[str], part: str) -> None:
    status, _, err = program(main, *words)
    assert status == 1
    assert err.startswith("error: ")
    assert part in err
    assert err.count("\n") == 1


def test_a_setting_that_is_given_replaces_the_small_one() -> None:
    kind, (one, other) = read_overrides(["pe=rope,alibi", "model.width=32"])
    assert kind == "pe"
    assert (one.pe.name, other.pe.name) == ("rope", "alibi")
    assert (one.model.width, one.model.num_heads) == (32, 2)


def test_a_line_has_the_difference_and_the_reason() -> None:
    assert outcome_line(PromiseOutcome("a promise", True, 1.2e-16)).split() == ["holds", "a", "promise", "1.2e-16"]
    assert outcome_line(PromiseOutcome("a promise", False, reason="x\x1b")).split() == [
        "BROKEN",
        "a",
        "promise",
        "x\\x1b",
    ]
    assert outcome_line(PromiseOutcome("a promise", None, reason="why")).split() == ["n/a", "a", "promise", "why"]
    outcomes = [
        PromiseOutcome("a", True),
        PromiseOutcome("b", None),
        PromiseOutcome("c", False),
        PromiseOutcome("d", True),
    ]
    assert summary_line("x", outcomes) == "x: 2 promises hold, 1 are broken, 1 do not apply"


def test_a_cause_that_breaks_several_promises_is_shown_once() -> None:
    """Sizes in a reason may differ; what does not apply keeps its reason."""
    reasons = ["bias must be [9], got [9, 9]", "bias must be [400], got [400, 400]", "gate must be [9], got [8]"]
    outcomes = [PromiseOutcome(f"promise {reason}", False, reason=reason) for reason in reasons]
    first, second, third = (outcome_line(one, outcomes[:number]) for number, one in enumerate(outcomes))
    assert first.endswith(reasons[0])
    assert third.endswith(reasons[2])
    assert not second.endswith(reasons[1])
    assert second.startswith("BROKEN")
    twice = [PromiseOutcome("a", None, reason="why"), PromiseOutcome("b", None, reason="why")]
    assert outcome_line(twice[1], twice[:1]).endswith("why")
