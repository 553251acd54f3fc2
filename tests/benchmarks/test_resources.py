"""Every kernel compiles for GPUs that are not present, within their registers and shared memory."""

import csv
import os
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.ahead import SHARED_MEMORY, Resources
from benchmarks.resources import FACTORS, OPTIONAL_TERMS, KernelCase, covering_cases, exceeded_limit, preset_cases

pytestmark = pytest.mark.slow

CONFIGS = ROOT / "conf" / "pe"


def test_every_pair_of_options_is_compiled() -> None:
    cases = [case for case in covering_cases() if case.kernel == "forward"]
    values = [
        {name: getattr(case, name) for name in ("architecture", "dtype", "head_dim", "causal")}
        | {option: option in case.enabled for option in OPTIONAL_TERMS}
        for case in cases
    ]
    for a, b in combinations(FACTORS, 2):
        assert {(value[a], value[b]) for value in values} == set(product(FACTORS[a], FACTORS[b]))
    assert len(cases) < 30  # not all with all


def test_every_encoding_is_compiled_for_every_architecture() -> None:
    enabled = {case.enabled for case in preset_cases(CONFIGS)}
    assert enabled == {frozenset(), frozenset({"BIAS"}), frozenset({"GATE"}), frozenset({"DECAY"})}
    assert {case.architecture for case in preset_cases(CONFIGS)} == set(SHARED_MEMORY)


def test_spills_and_too_much_shared_memory_are_faults() -> None:
    import torch

    low, full = (
        KernelCase("forward", "sm_90", dtype, 64, True, frozenset()) for dtype in (torch.bfloat16, torch.float32)
    )
    assert exceeded_limit(low, Resources(255, 0, 1000, "wgmma")) == ""
    assert exceeded_limit(low, Resources(255, 8, 1000, "wgmma")) == "spills"
    assert exceeded_limit(full, Resources(255, 8, 1000, "wgmma")) == ""
    assert exceeded_limit(full, Resources(255, 0, 232_449, "wgmma")) == "shared memory"


@pytest.mark.parametrize("architecture", sorted(SHARED_MEMORY))
def test_the_cover_compiles_within_what_an_architecture_has(architecture: str, tmp_path: Path) -> None:
    """Run in another process: in this one, kernels may be interpreted."""
    table = tmp_path / "resources.csv"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks", "resources", "--architecture", architecture, "--to", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {row["kernel"] for row in rows} >= {"forward", "backward_keys", "backward_queries", "backward_tables"}
    expected = {"sm_80": "mma.sync", "sm_90": "wgmma", "sm_100": "tcgen05.mma"}[architecture]
    assert any(row["products"] == expected for row in rows)  # the architecture's own matrix instructions
