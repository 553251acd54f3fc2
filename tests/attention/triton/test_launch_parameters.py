"""Every launch finds its blocks, in the table that ships and on GPUs that are not in it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, combinations, product
from pathlib import Path

import pytest
import torch

from pe_lab.attention.triton import launch_parameters
from pe_lab.attention.triton.launch_parameters import (
    INTERPRETER,
    TABLE_FILE,
    Blocks,
    blocks_key,
    choose_blocks,
    load_blocks,
    load_class,
    on_its_device,
    tile_dims,
    write_blocks,
)

SOFTMAX = ("forward", "backward_keys", "backward_queries", "backward_tables")
STICK = tuple(f"stick_{name}" for name in SOFTMAX)
KERNELS = SOFTMAX + STICK
OPTIONS = ("BIAS", "GATE", "DECAY", "SEGMENTED", "DROPOUT", "WINDOW")
SUBSETS = list(chain.from_iterable(combinations(OPTIONS, count) for count in range(len(OPTIONS) + 1)))
DTYPES = (torch.float32, torch.bfloat16)


def launched(kernel: str, there: tuple[str, ...]) -> bool:
    """Whether a kernel is asked for with these options: a stick takes two, and the gradients of tables need a table."""
    if kernel in STICK and not set(there) <= {"BIAS", "SEGMENTED"}:
        return False
    return not kernel.endswith("backward_tables") or "BIAS" in there or "GATE" in there


ENTRIES = [
    (name, key, Blocks(*entry))
    for name, part in json.loads(TABLE_FILE.read_text()).items()
    for key, entry in part.items()
]


def test_the_table_covers_the_interpreter_and_three_generations_of_gpus() -> None:
    assert load_blocks().keys() >= {INTERPRETER, "sm_80", "sm_90", "sm_100"}


@pytest.mark.parametrize(("architecture", "key", "entry"), ENTRIES, ids=[f"{a} {k}" for a, k, _ in ENTRIES])
def test_an_entry_is_a_launch_that_triton_takes(architecture: str, key: str, entry: Blocks) -> None:
    for size in (entry.m, entry.n):
        assert size >= 16
        assert size & (size - 1) == 0
    assert entry.warps in (1, 2, 4, 8)
    assert 1 <= entry.stages <= 8
    kernel = key.split()[0]
    assert kernel in KERNELS
    assert entry.m == entry.n or not kernel.endswith("backward_tables")


@pytest.mark.parametrize("architecture", load_blocks())
def test_every_launch_finds_an_entry(architecture: str) -> None:
    results = set()
    for kernel, dtype, head_dim, there in product(KERNELS, DTYPES, range(1, 129), SUBSETS):
        if launched(kernel, there):
            results.add(choose_blocks(architecture, kernel, dtype, head_dim, there))
    assert results <= set(load_blocks()[architecture].values())


@pytest.mark.parametrize("head_dim", range(1, 129))
def test_dims_are_the_next_power_of_two(head_dim: int) -> None:
    power = tile_dims(head_dim)
    assert power & (power - 1) == 0
    assert max(head_dim, 16) <= power < max(2 * head_dim, 17)


@pytest.mark.parametrize("there", SUBSETS)
def test_the_class_of_a_load_counts_what_is_read_beside_the_tiles(there: tuple[str, ...]) -> None:
    tables = len({"BIAS", "GATE", "DECAY"} & set(there))
    expected = "mixed" if tables > 1 or "DROPOUT" in there else "table" if tables else "plain"
    assert load_class(there) == load_class(set(there)) == expected


# -- the device of a launch --------------------------------------------------------------------------------------------


def test_an_operator_launches_on_the_device_of_its_first_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever device is current, and whatever stands before the tensor."""
    entered: list[torch.Tensor] = []
    inside: list[bool] = []

    @contextmanager
    def device_of(x: torch.Tensor) -> Iterator[None]:
        entered.append(x)
        inside.append(True)
        yield
        inside.append(False)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    x, y = torch.zeros(1), torch.zeros(2)
    given: list[tuple] = []
    operator = on_its_device(lambda *rest, **named: given.append((rest, named, inside[-1])))
    operator(None, x, y, scale=2.0)
    operator(x=y)
    assert [id(x) for x in entered] == [id(x), id(y)]
    assert given == [((None, x, y), {"scale": 2.0}, True), ((), {"x": y}, True)]


# -- on a table of three architectures ---------------------------------------------------------------------------------


def part(m: int) -> dict[str, Blocks]:
    """A whole part, of which every entry tells its architecture by m."""
    keys = (
        blocks_key(kernel, dtype, head_dim, there)
        for kernel, dtype, head_dim, there in product(KERNELS, DTYPES, (16, 32, 64, 128), SUBSETS)
    )
    return {name: Blocks(m, m, 4, 2) for name in keys}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A table in a temporary folder, in no order."""
    path = tmp_path / "launch_parameters.json"
    shipped = json.loads(TABLE_FILE.read_text())
    path.write_text(json.dumps({INTERPRETER: shipped[INTERPRETER]}))
    monkeypatch.setattr(launch_parameters, "TABLE_FILE", path)
    load_blocks.cache_clear()
    for name, m in (("sm_100", 128), ("sm_80", 16), ("sm_90", 64)):
        write_blocks(name, part(m))
    yield path
    load_blocks.cache_clear()


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("architecture", "taken"),
    [
        ("sm_80", "sm_80"),
        ("sm_90", "sm_90"),
        ("sm_100", "sm_100"),
        ("sm_86", "sm_80"),
        ("sm_89", "sm_80"),
        ("sm_99", "sm_90"),
        ("sm_103", "sm_100"),
        ("sm_120", "sm_100"),
        ("sm_75", "sm_80"),
        ("sm_70", "sm_80"),
    ],
)
def test_an_architecture_takes_its_own_blocks_or_those_of_the_nearest_older_one(architecture: str, taken: str) -> None:
    m = {"sm_80": 16, "sm_90": 64, "sm_100": 128}[taken]
    for kernel, dtype, head_dim, there in product(KERNELS, DTYPES, (1, 17, 64, 80, 128), SUBSETS):
        assert choose_blocks(architecture, kernel, dtype, head_dim, there) == Blocks(m, m, 4, 2)


@pytest.mark.usefixtures("table")
def test_the_interpreter_takes_blocks_of_its_own() -> None:
    for kernel in KERNELS:
        assert choose_blocks(INTERPRETER, kernel, torch.float32, 64, ()) == load_blocks()[INTERPRETER][kernel]


def test_what_is_written_is_loaded(table: Path) -> None:
    before = load_blocks()
    new = {name: Blocks(32, 16, 8, 3) for name in part(16)}
    write_blocks("sm_90", new)
    assert load_blocks() == before | {"sm_90": new}
    write_blocks("sm_120", new)
    assert load_blocks() == before | {"sm_90": new, "sm_120": new}
    once = table.read_text(encoding="utf-8")
    write_blocks("sm_120", new)
    assert table.read_text(encoding="utf-8") == once


def test_writing_gives_every_entry_a_line(table: Path) -> None:
    lines = table.read_text(encoding="utf-8").splitlines()
    entries = sum(len(entries) for entries in load_blocks().values())
    assert len(lines) == 2 + 2 * len(load_blocks()) + entries
    assert '    "forward bfloat16 64 plain": [64, 64, 4, 2],' in lines
