"""Verdicts on entries, from the values of our seeds."""

import re
from dataclasses import replace

import pytest

from pe_lab.replication import Entry, EntryVerdict, Reported, judge_entry
from pe_lab.statistics import Published

ENTRY = Entry(
    name="table/cell",
    title="A paper",
    paper="https://arxiv.org/abs/0000.00000",
    says="It works.",
    source="table 1",
    seen=True,
    unit="share",
    values={
        "short": Reported(Published(1.0, 0.01, 5), "exact_match"),
        "long": Reported(Published(0.5, 0.02, 5), "exact_match", (2.0,)),
    },
    tolerance=0.1,
    seeds=3,
    setting=("data=copy",),
    chosen=(),
    lacks=None,
    minutes=40.0,
    timed=False,
)
RIGHT = {"short": [0.99, 1.0, 1.0], "long": [0.5, 0.52, 0.49]}
WRONG = {"short": [0.7, 0.71, 0.69], "long": [0.1, 0.1, 0.12]}
OPEN = [0.1, 0.5, 0.9]


@pytest.mark.parametrize(
    ("short", "long", "verdict"),
    [
        (RIGHT["short"], RIGHT["long"], EntryVerdict.REPRODUCED),
        (RIGHT["short"], WRONG["long"], EntryVerdict.MIXED),
        (WRONG["short"], WRONG["long"], EntryVerdict.NOT_REPRODUCED),
        (RIGHT["short"], OPEN, EntryVerdict.UNDECIDED),
        (WRONG["short"], OPEN, EntryVerdict.NOT_REPRODUCED),
    ],
)
def test_all_values_must_agree(short: list[float], long: list[float], verdict: EntryVerdict) -> None:
    finding = judge_entry(ENTRY, {"short": short, "long": long})
    assert finding.verdict is verdict
    assert finding.seeds == 3
    assert finding.ours["long"] == pytest.approx(sum(long) / 3)


def test_an_undecided_entry_says_how_many_seeds_would_decide() -> None:
    values = RIGHT | {"long": [0.42, 0.5, 0.58]}
    finding = judge_entry(ENTRY, values)
    (number,) = re.findall(r"needs (\d+) seeds", str(finding))
    assert 3 < int(number) == finding.compared["long"].needed
    few = replace(ENTRY, values=ENTRY.values | {"long": Reported(Published(0.5), "exact_match")})
    assert "no number of our seeds" in str(judge_entry(few, values))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "needs 2.0 core-hours"),
        ({"minutes": 3.0}, "needs 9 core-minutes"),
        ({"lacks": "encoder"}, "pe_lab has no encoder"),
    ],
)
@pytest.mark.parametrize("seeds", [0, 2])
def test_without_enough_seeds_an_entry_is_not_run(change: dict[str, object], why: str, seeds: int) -> None:
    finding = judge_entry(replace(ENTRY, **change), {label: numbers[:seeds] for label, numbers in RIGHT.items()})
    assert finding.verdict is EntryVerdict.NOT_RUN
    assert str(finding) == f"not run: {why}"
