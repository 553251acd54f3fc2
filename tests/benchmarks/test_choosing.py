"""Blocks are chosen by what their compiled code costs; here nothing is compiled."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks import choosing
from benchmarks.choosing import BlockChoice, best, best_of_group, candidate_blocks, cost, groups
from benchmarks.static import Count, keys
from pe_lab.attention.triton import launch_parameters
from pe_lab.attention.triton.launch_parameters import INTERPRETER, Blocks, load_blocks

INFINITY = float("inf")
KEY = "backward_queries float32 64 plain"
PLAIN = Count(128, 0, 0, 40_000, "wgmma", 0, 1.0, 10.0, 16.0)
OLD = Blocks(32, 32, 8, 1)
FIRST, SECOND = (
    list(candidate_blocks("backward_queries", "float32", 64)),
    list(candidate_blocks("backward_queries", "float32", 64, True)),
)
STICK = [f"stick_backward_{kernel} float32 64 table" for kernel in ("queries", "keys", "tables")]


def changed(**values: float | str) -> Count:
    return Count(**(vars(PLAIN) | values))


@dataclass
class Compiler:
    """Counts blocks as `count` says, and remembers what it was given."""

    count: Callable[[str, Blocks, bool], Count | None]
    compiled: list[tuple[str, Blocks, bool]] = field(default_factory=list)

    def __call__(self, architecture: str, key: str, tried: list[Blocks], packed: bool = False) -> list[Count | None]:
        self.compiled += [(key, blocks, packed) for blocks in tried]
        return [self.count(key, blocks, packed) for blocks in tried]


def compiler(
    given: dict[Blocks, Count | None], other: Count | None, packed: dict[Blocks, Count] | None = None
) -> Compiler:
    """Counts these blocks so, and others as `other`."""
    return Compiler(lambda key, b, with_packed: {**given, **(packed if with_packed and packed else {})}.get(b, other))


# -- candidates and their cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kernel", ["forward", "backward_keys", "backward_queries", "backward_tables", "stick_forward"])
def test_no_two_warps_of_a_candidate_compute_the_same_pair(kernel: str, dtype: str, head_dim: int, spare: bool) -> None:
    """A matrix instruction has 16 rows and 8 columns; Triton puts warps along the longer side of a tile."""
    found = list(candidate_blocks(kernel, dtype, head_dim, spare))
    assert len(found) == len(set(found)) >= (1 if spare and kernel.endswith("tables") else 2)
    for blocks in found:
        rows, columns = (blocks.n, blocks.m) if kernel == "backward_keys" else (blocks.m, blocks.n)
        assert rows >= 16 * blocks.warps or (rows >= 16 and columns > rows and columns >= 8 * blocks.warps)
        assert blocks.m == blocks.n or kernel != "backward_tables"
    assert set(found).isdisjoint(candidate_blocks(kernel, dtype, head_dim, not spare))


def test_a_cost_counts_masked_tiles_and_idle_schedulers_and_excludes_spills() -> None:
    blocks = Blocks(64, 64, 4, 2)
    whole, masked = 10.0 * (1 - 64 / 1024), 16.0 * 2 * 64 / 1024
    assert cost(PLAIN, blocks, "sm_90") == pytest.approx(whole + masked)  # 4 programs of 4 warps at a time
    assert cost(changed(shared=200_000), blocks, "sm_90") == pytest.approx(2 * (whole + masked))
    for fault in ({"spilled": 8}, {"local": 1}, {"shared": 232_449}):
        assert cost(changed(**fault), blocks, "sm_90") == INFINITY
    spilling = cost(changed(spilled=8, local=10), blocks, "sm_90", spills=True)
    assert spilling == pytest.approx(whole + masked + choosing.LOCAL_COST * 10 * 128 / 4096)
    assert cost(changed(spilled=8, shared=232_449), blocks, "sm_90", spills=True) == INFINITY


# -- the best blocks of a key ------------------------------------------------------------------------------------------


def test_the_cheapest_of_the_first_round_is_taken_and_no_second_is_compiled() -> None:
    compile_ = compiler({FIRST[1]: changed(instructions=5.0)}, PLAIN)
    found = best(compile_, "sm_90", KEY, OLD)
    assert found == BlockChoice(FIRST[1], False, pytest.approx(cost(changed(instructions=5.0), FIRST[1], "sm_90")))
    assert {blocks for _, blocks, packed in compile_.compiled if not packed} == {OLD, *FIRST}
    assert [blocks for _, blocks, packed in compile_.compiled if packed] == [FIRST[1]]


def test_blocks_that_spill_with_packed_documents_are_not_taken() -> None:
    given = {FIRST[1]: changed(instructions=5.0), FIRST[2]: changed(instructions=6.0)}
    compile_ = compiler(given, PLAIN, packed={FIRST[1]: changed(spilled=8)})
    assert best(compile_, "sm_90", KEY, OLD).blocks == FIRST[2]
    compile_ = compiler(given, PLAIN, packed={FIRST[1]: changed(local=1)})
    assert best(compile_, "sm_90", KEY, OLD).blocks == FIRST[2]


def test_where_all_of_the_first_round_spill_the_second_is_compared_with_the_old_blocks() -> None:
    spilling, better = changed(spilled=8, instructions=1.0), changed(instructions=9.0)
    given = {OLD: PLAIN, SECOND[3]: better}
    assert best(compiler(given, spilling), "sm_90", KEY, OLD).blocks == SECOND[3]
    given[SECOND[3]] = changed(instructions=90.0)
    assert best(compiler(given, spilling), "sm_90", KEY, OLD) == BlockChoice(
        OLD, False, pytest.approx(cost(PLAIN, OLD, "sm_90"))
    )


def test_where_all_spill_those_that_do_so_when_packed_come_first_then_the_cheapest() -> None:
    spilling, few = changed(spilled=8, local=4), changed(spilled=80, local=1, instructions=9.0)
    compile_ = compiler({SECOND[0]: changed(instructions=90.0)}, spilling, packed={SECOND[0]: spilling})
    assert best(compile_, "sm_90", KEY, OLD).blocks == SECOND[0]
    assert best(compile_, "sm_90", KEY, OLD).spills
    found = best(compiler({SECOND[1]: few}, spilling), "sm_90", KEY, OLD)
    assert found == BlockChoice(SECOND[1], True, pytest.approx(cost(few, SECOND[1], "sm_90", spills=True)))


def test_what_the_compiler_refuses_or_no_gpu_holds_is_no_choice() -> None:
    assert best(compiler({FIRST[0]: PLAIN}, None), "sm_90", KEY, OLD).blocks == FIRST[0]
    assert best(compiler({}, None), "sm_90", KEY, OLD) is None
    assert best(compiler({}, changed(shared=232_449)), "sm_90", KEY, OLD) is None


# -- keys that are chosen together -------------------------------------------------------------------------------------


def test_the_backward_kernels_of_a_stick_are_one_group() -> None:
    found = list(groups([("sm_80", KEY), *(("sm_80", key) for key in STICK), ("sm_90", STICK[0])]))
    assert found == [("sm_80", [KEY]), ("sm_80", STICK), ("sm_90", [STICK[0]])]


def test_a_stick_gets_the_width_with_which_most_spill_nothing_and_all_cost_least() -> None:
    before = dict.fromkeys((KEY, *STICK), Blocks(32, 32, 4, 1))

    def count(key: str, blocks: Blocks, packed: bool) -> Count:
        cheap = {"queries": 32, "keys": 64, "tables": 16}[key.split()[0].removeprefix("stick_backward_")]
        return changed(spilled=8 * (blocks.n == 16), instructions=5.0 if blocks.n == cheap else 50.0)

    chosen = best_of_group(Compiler(count), "sm_90", STICK, before)
    assert len({choice.blocks.n for choice in chosen.values()}) == 1
    assert not any(choice.spills for choice in chosen.values())
    assert chosen[STICK[0]].blocks.n == 32


def test_a_part_of_a_stick_keeps_the_width_that_it_shares() -> None:
    before = dict.fromkeys((KEY, *STICK), Blocks(32, 32, 4, 1))
    compile_ = Compiler(lambda key, blocks, packed: changed(instructions=float(blocks.n)))
    (choice,) = best_of_group(compile_, "sm_80", STICK[:1], before).values()
    assert {blocks.n for _, blocks, _ in compile_.compiled} == {before[STICK[0]].n} == {choice.blocks.n}


# -- the table ---------------------------------------------------------------------------------------------------------


class Here:
    """Stands for a pool of processes, and computes in this one."""

    def __init__(self, processes: int) -> None: ...

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *_: object) -> None: ...

    map = staticmethod(map)


@pytest.fixture
def copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Replace the table by a copy, and the pool of processes by this one."""
    path = tmp_path / "blocks.json"
    path.write_text(launch_parameters.TABLE_FILE.read_text())
    monkeypatch.setattr(launch_parameters, "TABLE_FILE", path)
    monkeypatch.setattr(choosing, "ProcessPoolExecutor", Here)
    load_blocks.cache_clear()
    yield
    load_blocks.cache_clear()


@pytest.mark.usefixtures("copy")
def test_what_was_chosen_is_written_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, packed_too = load_blocks(), []

    def counted(architecture: str, key: str, packed: bool, blocks: Blocks) -> Count:
        packed_too.append(packed)
        return changed(instructions=5.0 if blocks == FIRST[1] else 10.0)

    monkeypatch.setattr(choosing, "_count_of", counted)
    choosing.choose_blocks(["sm_80"], f"^{KEY}$", 1)
    assert load_blocks() == before | {"sm_80": before["sm_80"] | {KEY: FIRST[1]}}
    assert packed_too.count(True) == 1
    assert capsys.readouterr().out.startswith(f"sm_80 {KEY}: {before['sm_80'][KEY]} -> {FIRST[1]} ")


def test_keys_of_a_stick_share_a_width_in_the_table_that_ships() -> None:
    for architecture, group in groups(list(keys([], "^stick_backward"))):
        assert architecture != INTERPRETER
        widths = {load_blocks()[architecture][key].n for key in group}
        assert len(widths) == 1, (architecture, group)
