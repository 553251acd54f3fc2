"""Simulated studies: every variant of the protocol is judged on the same runs."""

import math

from benchmarks.simulate_verdicts import VARIANTS, simulate
from benchmarks.simulated_runs import Design


def test_every_variant_of_the_protocol_is_simulated() -> None:
    lines = simulate("alternatives", "normal", 2, Design(), 2)
    assert {line["variant"] for line in lines} == VARIANTS.keys()
    assert len({line["run_steps"] for line in lines}) == 1
    for line in lines:
        assert line["studies"] == 2
        assert math.isfinite(float(line["covered"]))
