"""The kernels as a GPU would run them: no spills, no atomics, every exponential once, few instructions per pair.

Compiled in another process: in this one, kernels may be interpreted.
"""

import csv
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from benchmarks import ROOT, static
from benchmarks.static import case_of, innermost_loops, keys
from pe_lab.attention.triton.launch_parameters import INTERPRETER, Blocks, load_blocks

Row = dict[str, str]
STATIC = ROOT / "sweeps/results/kernels/static.csv"
PRODUCTS = {"sm_80": {"mma.sync"}, "sm_90": {"wgmma", "mma.sync"}, "sm_100": {"tcgen05.mma", "mma.sync"}}
SPILLS = {  # bytes; see sweeps/results/kernels/README.md for the reasons
    ("sm_80", "backward_tables bfloat16 128 mixed"): 8,
    ("sm_80", "backward_tables float32 64 mixed"): 8,
    ("sm_80", "forward float32 128 plain"): 32,
    ("sm_80", "forward float32 128 table"): 8,
    ("sm_80", "forward float32 128 mixed"): 8,
    ("sm_80", "backward_keys float32 128 plain"): 32,
    ("sm_80", "backward_keys float32 128 table"): 8,
    ("sm_80", "backward_keys float32 128 mixed"): 128,
    ("sm_80", "backward_queries float32 128 plain"): 8,
    ("sm_80", "backward_queries float32 128 table"): 24,
    ("sm_80", "backward_queries float32 128 mixed"): 88,
    ("sm_80", "backward_tables float32 128 table"): 912,
    ("sm_80", "backward_tables float32 128 mixed"): 880,
    ("sm_80", "stick_backward_queries float32 16 plain"): 16,
    ("sm_80", "stick_backward_queries float32 16 table"): 16,
    ("sm_80", "stick_backward_keys float32 64 table"): 16,
    ("sm_80", "stick_backward_queries float32 128 plain"): 232,
    ("sm_80", "stick_backward_queries float32 128 table"): 232,
    ("sm_80", "stick_backward_keys float32 128 plain"): 472,
    ("sm_80", "stick_backward_keys float32 128 table"): 528,
    ("sm_80", "stick_backward_tables float32 128 table"): 8168,
    ("sm_90", "backward_tables float32 64 mixed"): 8,
    ("sm_90", "forward float32 128 table"): 8,
    ("sm_90", "forward float32 128 mixed"): 8,
    ("sm_90", "backward_keys float32 128 plain"): 8,
    ("sm_90", "backward_keys float32 128 table"): 32,
    ("sm_90", "backward_keys float32 128 mixed"): 136,
    ("sm_90", "backward_queries float32 128 plain"): 32,
    ("sm_90", "backward_queries float32 128 table"): 32,
    ("sm_90", "backward_queries float32 128 mixed"): 80,
    ("sm_90", "backward_tables float32 128 table"): 792,
    ("sm_90", "backward_tables float32 128 mixed"): 872,
    ("sm_90", "stick_backward_tables bfloat16 128 table"): 24,
    ("sm_90", "stick_backward_tables float32 64 table"): 8,
    ("sm_90", "stick_backward_queries float32 128 plain"): 216,
    ("sm_90", "stick_backward_queries float32 128 table"): 216,
    ("sm_90", "stick_backward_keys float32 128 plain"): 440,
    ("sm_90", "stick_backward_keys float32 128 table"): 496,
    ("sm_90", "stick_backward_tables float32 128 table"): 1560,
}
COUNT = {  # keys in bfloat16: four head dimensions, with each load that there is
    **{"forward": 12, "backward_keys": 12, "backward_queries": 12, "backward_tables": 8},
    **{"stick_forward": 8, "stick_backward_queries": 8, "stick_backward_keys": 8, "stick_backward_tables": 4},
}
BUDGET = {  # instructions per pair on sm_90 with head dimension 64, a tenth or less above those of the table that ships
    "forward bfloat16 64 plain": 10.0,
    "forward bfloat16 64 table": 10.9,
    "backward_keys bfloat16 64 plain": 10.0,
    "backward_queries bfloat16 64 plain": 8.1,
}


def known_spills(architecture: str) -> dict[str, int]:
    """The bytes that kernels spill, by key."""
    return {key: number for (name, key), number in SPILLS.items() if name == architecture}


@cache
def committed() -> dict[tuple[str, str], Row]:
    """The rows of the table that is kept with the results, by architecture and key."""
    return {(row["architecture"], row["key"]): row for row in csv.DictReader(STATIC.read_text().splitlines())}


def counted(architecture: str, pattern: str, to: Path, *more: str) -> list[Row]:
    """The rows of the keys that match."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks", "static", "--architecture", architecture, "--keys", pattern]
    subprocess.run([*command, *more, "--to", str(to)], check=True, capture_output=True, env=environment, cwd=ROOT)
    return list(csv.DictReader(to.read_text(encoding="utf-8").splitlines()))


def assert_sound(row: Row) -> None:
    """Nothing spilled, nothing atomic, on tensor cores, and no pair of a tile computed by two threads.

    The forward kernel rescales a row's sums once per tile: four threads hold a row, eight where two warps share it.
    """
    kernel, dtype = row["key"].split()[:2]
    assert int(row["spilled"]) <= known_spills(row["architecture"]).get(row["key"], 0), row
    assert row["local"] == "0" or int(row["spilled"]), row
    assert row["atomics"] == "0", row
    assert row["products"] in PRODUCTS[row["architecture"]], row
    if dtype == "float32":  # some keys compute pairs twice, and the table says which
        assert float(row["exponentials"]) <= float(committed()[row["architecture"], row["key"]]["exponentials"]), row
    elif kernel.startswith("stick"):  # a key's share and its part of the remainder; again for the gradient of both
        assert float(row["exponentials"]) == (2 if kernel == "stick_forward" else 4), row
    else:
        if row["architecture"] == "sm_90" and int(row["warps"]) >= 4:
            assert row["products"] == "wgmma", row
        rescaling = 8 / int(row["n"]) if kernel == "forward" else 0.0
        assert 1 <= float(row["exponentials"]) <= 1.001 + rescaling, row


@pytest.mark.slow  # 4 kernels in 18 s
def test_kernels_of_common_encodings_are_sound_and_within_their_budget(tmp_path: Path) -> None:
    pattern = "^((forward|backward_keys|backward_queries) bfloat16 64 plain|forward bfloat16 64 table)$"
    rows = counted("sm_90", pattern, tmp_path / "static.csv")
    assert {row["key"] for row in rows} == BUDGET.keys()
    for row in rows:
        assert_sound(row)
        assert float(row["instructions"]) <= BUDGET[row["key"]], row
    both = sum(float(row["instructions"]) for row in rows if row["key"].startswith("backward"))
    assert both <= 18


@pytest.mark.slow  # 24 kernels in 80 s
@pytest.mark.parametrize("packed", [(), ("--packed",)])
@pytest.mark.parametrize(("kernel", "count"), COUNT.items())
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_every_key_in_bfloat16_is_sound(
    architecture: str, kernel: str, count: int, packed: tuple[str, ...], tmp_path: Path
) -> None:
    rows = counted(architecture, f"^{kernel} bfloat16", tmp_path / "static.csv", *packed)
    assert len(rows) == count
    for row in rows:
        assert_sound(row)


@pytest.mark.exhaustive  # 72 kernels in 5 minutes
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_every_key_in_float32_is_as_the_table_says(architecture: str, tmp_path: Path) -> None:
    rows = counted(architecture, " float32 ", tmp_path / "static.csv")
    assert len(rows) == sum(COUNT.values())
    for row in rows:
        assert_sound(row)


def test_the_committed_table_is_of_the_blocks_that_ship() -> None:
    rows = committed()
    assert rows.keys() == set(keys([]))
    for (architecture, key), row in rows.items():
        assert Blocks(*(int(row[name]) for name in ("m", "n", "warps", "stages"))) == load_blocks()[architecture][key]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_committed_table_has_no_spills_but_those_that_are_known(architecture: str) -> None:
    rows = [row for (name, _), row in committed().items() if name == architecture]
    assert {row["key"]: int(row["spilled"]) for row in rows if row["spilled"] != "0"} == known_spills(architecture)
    assert all(row["local"] == "0" or row["spilled"] != "0" for row in rows)
    assert {row["atomics"] for row in rows} == {"0"}


# -- loops in machine code ---------------------------------------------------------------------------------------------


def test_innermost_loops_are_found_by_their_backward_branches() -> None:
    texts = ["MOV R1, R2", "MUFU.EX2 R1, R1", "BRA 0x10", "IADD3 R1, R2", "BRA 0x0"]
    code = [(0x10 * index, text) for index, text in enumerate(texts)]
    assert innermost_loops(code) == [["MUFU.EX2 R1, R1", "BRA 0x10"]]


def test_forward_branches_and_the_halt_at_the_end_are_no_loops() -> None:
    assert innermost_loops([(0x0, "BRA 0x20"), (0x10, "NOP"), (0x20, "BRA 0x20")]) == []


def test_instructions_are_read_without_their_predicates() -> None:
    listing = """
        /*0480*/              @!P2 BRA 0x300 ;          /* 0xfffffee800a80947 */
                                                        /* 0x000fea000383ffff */
        /*10490*/             @UP0 UIADD3 UR4, UR4 ;    /* 0x */
        /*04a0*/                   LDL.64 R4, [R1+0x8] ;
    """
    code = static.INSTRUCTION.findall(listing)
    assert code == [("0480", "BRA 0x300"), ("10490", "UIADD3 UR4, UR4"), ("04a0", "LDL.64 R4, [R1+0x8]")]
    assert [bool(static.LOCAL.match(text)) for _, text in code] == [False, False, True]


@pytest.mark.parametrize(
    ("ptx", "atomic"),
    [
        ("atom.global.add.f32 %r1, [%rd1], %r2;", True),
        ("red.async.relaxed.cluster.global.add.u32 [%rd1], %r2;", True),
        ("redux.sync.add.s32 %r1, %r2, 0xffffffff;", False),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", False),
    ],
)
def test_atomics_are_found_in_the_code(ptx: str, atomic: bool) -> None:
    assert bool(static.ATOMIC.search(ptx)) is atomic


# -- keys --------------------------------------------------------------------------------------------------------------


def test_every_key_of_the_table_has_a_case_that_finds_its_blocks() -> None:
    actual = list(keys(()))
    assert len(actual) == sum(len(part) for name, part in load_blocks().items() if name != INTERPRETER)
    for architecture, key in actual:
        assert case_of(architecture, key).blocks == load_blocks()[architecture][key] or key.startswith("stick_backward")
    assert {key for _, key in keys(["sm_90"], "^forward bfloat16 64")} == {
        f"forward bfloat16 64 {load}" for load in static.LOADS
    }


def test_a_case_has_the_terms_of_its_load() -> None:
    case = case_of("sm_90", "backward_keys float32 32 mixed")
    assert (case.kernel, case.dtype, case.head_dim, case.causal) == ("backward_keys", torch.float32, 32, True)
    assert case.enabled == {"BIAS", "GATE", "DECAY", "DROPOUT"}
    assert case_of("sm_90", "stick_forward bfloat16 64 table").enabled == {"BIAS", "DOWN", "SELF"}
    assert case_of("sm_90", "forward bfloat16 64 table", packed=True).enabled == {"BIAS", "SEGMENTED"}
