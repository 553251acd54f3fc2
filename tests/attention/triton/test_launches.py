"""What would be launched on a GPU: every kernel with blocks that there are, with arguments that it has, in its limits.

Launches are noted, nothing is computed. Only what is launched is looked up: a kernel that is not may have no blocks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import kernels as bench
from benchmarks import tune
from emulation.variants import count_by_stride, count_variants
from emulation.worker import worker
from helpers.configs import slow_but_for
from pe_lab.attention import attend, triton
from pe_lab.attention.dropout import Dropout
from pe_lab.attention.triton.operators import table_gradient
from pe_lab.check.case import MAX_MARK, marked_layout
from pe_lab.config import Model, config_folder, expand_overrides
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Rotary, Stick, Terms
from pe_lab.model import blocks
from pe_lab.model.transformer import Transformer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FILES = sorted((config_folder() / "pe").glob("*.yaml"))
CLASSES = {path.stem: hydra.utils.get_class(OmegaConf.load(path)._target_) for path in FILES}
DTYPES = (torch.float32, torch.bfloat16)
B, H, T, d = 2, 2, 40, 16
UNCHOSEN = {"sums", "spread_table", "rotate_forward", "rotate_backward"}  # kernels with blocks of their own
FORWARD = {False: {"forward"}, True: {"stick_forward"}}  # by whether a stick is broken
BACKWARD = {
    False: {"sums", "backward_keys", "backward_queries"},
    True: {"stick_store_rests", "stick_backward_queries", "stick_backward_keys"},
}


def layout_of(causal: bool, packed: bool, grid: int | None = None) -> Layout:
    """Sequences of one document, or of two with positions that run on."""
    layout = Layout.of_lengths(torch.full((B,), T), T, causal, grid)
    if packed:
        layout.segment[:, T // 2 :] = 1
    return marked_layout(layout).to(DEVICE)


def assert_sound(launches: list, looked_up: set[str]) -> set[str]:
    """The kernels that were launched: they have what a GPU takes, and only theirs were looked up."""
    made = {launch.kernel for launch in launches}
    assert looked_up == made - UNCHOSEN - {"stick_store_rests"}  # which has the blocks of stick_backward_queries
    for launch in launches:
        assert len(launch.grid) == 2
        assert 1 <= launch.grid[0] < 2**31
        assert 1 <= launch.grid[1] <= 65535
        devices = {x.device.type for x in launch.arguments.values() if isinstance(x, Tensor)}
        assert devices == {DEVICE.type}
    widths = {
        launch.arguments["BLOCK_N"]
        for launch in launches
        if launch.kernel.startswith("stick_") and "forward" not in launch.kernel
    }
    assert len(widths) <= 1  # of the tiles of keys, whose marks these kernels share
    return made


# -- every encoding ----------------------------------------------------------------------------------------------------


def encoding(name: str) -> Any:
    """As its file says; composed with others only where it says so, which takes its time."""
    options = OmegaConf.load(config_folder() / "pe" / f"{name}.yaml")
    composed = {"defaults", "parts"} & options.keys()
    return hydra.utils.instantiate(expand_overrides([f"pe={name}"], False)[0].pe if composed else options)


def build(made: Any, causal: bool, grid: int | None) -> Transformer:
    depth = made(Sizes(H * d, H, T, causal, grid, marks=MAX_MARK)).period
    sizes = {"depth": depth, "width": H * d, "num_heads": H, "mlp_ratio": 1, "norm": "pre"}
    config = Model(**sizes, dropout=0.0, embedding_std=1.0, scale_tokens=False)
    model = Transformer(config, made, Task(11, T, 11, causal=causal, grid_width=grid, marks=MAX_MARK), "triton")
    initialise_parameters(model, seed=0)
    return model.to(DEVICE)


@pytest.mark.parametrize("name", slow_but_for())
def test_a_training_step_of_every_encoding_launches_what_there_is_or_is_refused(
    name: str, launches: list, looked_up: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either dtype, causal or not, packed or not, with dropout or without."""
    requests: list[tuple] = []

    def spy(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, how: str, dropout: Dropout | None) -> Tensor:
        requests.append((q, terms, layout, dropout))
        return attend(q, k, v, terms, layout, how, dropout)

    monkeypatch.setattr(blocks, "attend", spy)
    tokens = torch.randint(11, (B, T), device=DEVICE)
    made, grid = encoding(name), 8 if CLASSES[name].on_grid else None
    for causal in (True,) if CLASSES[name].causal_only else (True, False):
        model = build(made, causal, grid)
        for packed, dtype, p in product((False, True), DTYPES, (0.0, 0.1)):
            for noted in (requests, launches, looked_up):
                noted.clear()
            for layer in model.layers:
                layer.attention_dropout = p
            refusal = None
            try:
                with torch.autocast(DEVICE.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                    logits = model(tokens, layout_of(causal, packed, grid))
                logits.float().sum().backward()
            except ValueError as error:
                refusal = str(error)
            given = requests[-1]
            assert given[0].dtype == dtype
            assert (given[3] is not None) is bool(p)
            if reason := triton.refusal_reason(*given):  # what attention=auto asks before it takes another
                assert refusal.startswith(f"attention=triton cannot compute this: {reason}; use attention=auto, ")
                assert not launches
                continue
            assert refusal is None
            stick = isinstance(given[1].normalizer, Stick)
            assert assert_sound(launches, looked_up) >= FORWARD[stick] | BACKWARD[stick]


# -- every choice of terms ---------------------------------------------------------------------------------------------


def tables(names: tuple[str, ...]) -> Iterator[tuple[dict[str, Tensor], set[str]]]:
    """Every choice of these terms, and of those that are trained."""
    shapes = {"distance_bias": (H, 2 * T - 1), "logit_factors": (1, 2 * T - 1), "decay": (B, H, T)}
    for there in product(("", "given", "trained"), repeat=len(names)):
        chosen = dict(zip(names, there, strict=True))
        trained = {name for name, how in chosen.items() if how == "trained"}
        drawn = {name: torch.rand(shapes[name], device=DEVICE) for name, how in chosen.items() if how}
        yield {name: table.requires_grad_(name in trained) for name, table in drawn.items()}, trained


def step(terms: Terms, layout: Layout, dropout: Dropout | None, dtype: torch.dtype) -> None:
    """Attention and the gradients of its inputs."""
    q, k, v = (torch.randn(B, H, T, d, device=DEVICE).to(dtype).requires_grad_() for _ in range(3))
    attend(q, k, v, terms, layout, "triton", dropout).sum().backward()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_launches_its_kernels_and_that_of_tables_where_one_is_trained(
    dtype: torch.dtype, causal: bool, launches: list, looked_up: set[str]
) -> None:
    dropout = Dropout(0.1, torch.tensor(0, device=DEVICE))
    for (given, trained), packed, drop in product(
        tables(("distance_bias", "logit_factors", "decay")), (False, True), (None, dropout)
    ):
        launches.clear()
        looked_up.clear()
        window = (3, None) if packed == (drop is None) else None
        step(Terms(**given, window=window), layout_of(causal, packed), drop, dtype)
        by_table = {"backward_tables"} if trained & {"distance_bias", "logit_factors"} else set()
        spread = {"spread_table"} if given.keys() & {"distance_bias", "logit_factors"} else set()
        assert assert_sound(launches, looked_up) == FORWARD[False] | BACKWARD[False] | by_table | spread
        for launch in launches:
            if launch.kernel not in UNCHOSEN:
                switches = {
                    "BIAS": "distance_bias" in given,
                    "GATE": "logit_factors" in given,
                    "DECAY": "decay" in given,
                    "SEGMENTED": packed,
                    "DROPOUT": drop is not None,
                    "WINDOW": window is not None,
                }
                assert {name: launch.arguments[name] for name in switches} == switches


@pytest.mark.parametrize(("window", "expected"), [((3,), [3, 3]), ((None, 5), [2**30, 5]), ((2**70, 1), [2**30, 1])])
def test_the_kernels_get_the_window_of_every_head(window: tuple, expected: list[int], launches: list) -> None:
    step(Terms(window=window), layout_of(True, False), None, torch.float32)
    given = [launch.arguments["window"] for launch in launches if launch.kernel not in UNCHOSEN]
    assert len(given) == 3
    for x in given:
        assert x.dtype == torch.int32
        assert x.is_contiguous()
        assert x.tolist() == expected


@pytest.mark.parametrize("half", [True, False])
def test_tables_of_rotation_are_read_where_they_lie(half: bool, launches: list) -> None:
    """Those of every sequence, as a projection of tokens has them; shared ones, also if they are expanded."""
    C = d // 2
    tables = [
        (torch.rand(B, T, H, C, device=DEVICE).transpose(1, 2), (T * H * C, C, H)),
        (torch.rand(B, 1, T, C, device=DEVICE), (T * C, 0, 1)),
        (torch.rand(1, H, T, C, device=DEVICE), (0, T * C, 1)),
        (torch.rand(1, 1, T, C, device=DEVICE).expand(B, H, T, C), (0, 0, 1)),
        (torch.rand(B, 1, T, C, device=DEVICE).expand(B, H, T, C), (T * C, 0, 1)),
    ]
    for table, strides in tables:
        launches.clear()
        cos, sin = (table.detach().requires_grad_() for _ in range(2))
        rotary = Rotary(cos, sin, "half" if half else "interleaved")
        step(Terms(rotary_q=rotary), layout_of(True, False), None, torch.float32)
        rotations = [launch.arguments for launch in launches if launch.kernel.startswith("rotate")]
        assert len(rotations) == 2
        for given in rotations:
            assert given["cos"].data_ptr() == table.data_ptr()
            assert tuple(given[f"table_{axis}"] for axis in ("batch", "head", "rows")) == strides


class Operations(TorchDispatchMode):
    """Note the operators of PyTorch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, given: tuple = (), named: dict | None = None) -> Any:
        self.names.append(function.overloadpacket.__name__)
        return function(*given, **(named or {}))


def test_dropout_adds_no_operation_of_pytorch_to_a_call(launches: list) -> None:
    """The kernels compute the keys of the random numbers from the seed."""
    names = []
    for dropout in (None, Dropout(0.1, torch.tensor(0, device=DEVICE))):
        inputs = [torch.randn(B, H, T, d, device=DEVICE, requires_grad=True) for _ in range(3)]
        with Operations() as operations:
            attend(*inputs, Terms(), layout_of(True, False), "triton", dropout).sum().backward()
        names.append(operations.names)
    assert names[0] == names[1]
    assert "softmax_attention" in names[0]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_stick_launches_its_kernels_and_that_of_tables_where_one_is_trained(
    dtype: torch.dtype, causal: bool, launches: list, looked_up: set[str]
) -> None:
    sticks = [Stick(*how) for how in product(("nearest", "first"), (True, False), ("drop", "own"))]
    for (given, trained), packed, stick in product(tables(("distance_bias",)), (False, True), sticks):
        launches.clear()
        looked_up.clear()
        step(Terms(**given, normalizer=stick), layout_of(causal, packed), None, dtype)
        by_table = {"stick_backward_tables"} if trained else set()
        by_table |= {"spread_table"} if given else set()
        assert assert_sound(launches, looked_up) == FORWARD[True] | BACKWARD[True] | by_table


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_launches_its_kernels(dtype: torch.dtype, trained: bool, launches: list, looked_up: set[str]) -> None:
    for pairing, gain, shape in product(("interleaved", "half"), (False, True), product((1, B), (1, H))):
        launches.clear()
        looked_up.clear()
        cos, sin = torch.randn(2, *shape, T, d // 2, device=DEVICE).requires_grad_(trained)
        rotary = Rotary(cos, sin, pairing)
        terms = Terms(rotary_q=rotary, rotary_k=rotary, gain=torch.ones(1, d, device=DEVICE) if gain else None)
        step(terms, layout_of(True, False), None, dtype)
        made = assert_sound(launches, looked_up)
        assert made == FORWARD[False] | BACKWARD[False] | {"rotate_forward", "rotate_backward"}
        for launch in launches:
            if launch.kernel == "rotate_backward":
                assert launch.arguments["TABLES"] is trained


# -- where and for what kernels are launched ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "stick"])
def test_every_launch_is_on_the_device_of_its_tensors(
    name: str, launches: list, looked_up: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients; the current device may be another."""
    inside: list[int] = []

    @contextmanager
    def device_of(x: Tensor) -> Iterator[None]:
        before = len(launches)
        yield
        inside.append(len(launches) - before)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    cos, sin = torch.randn(2, 1, 1, T, d // 2, device=DEVICE).requires_grad_()
    rotary, bias = Rotary(cos, sin), torch.rand(H, 2 * T - 1, device=DEVICE).requires_grad_()
    weights = {"normalizer": Stick()} if name == "stick" else {}
    step(
        Terms(rotary_q=rotary, rotary_k=rotary, distance_bias=bias, **weights),
        layout_of(True, False),
        None,
        torch.bfloat16,
    )
    assert len(launches) >= 8
    assert sum(inside) == len(launches)


@pytest.fixture(scope="module")
def compiler() -> Callable[..., Any]:
    """Calls a function in a process whose kernels are specialised as on a GPU."""
    return worker()


@pytest.mark.long
def test_a_kernel_is_compiled_once_for_all_lengths_and_numbers_of_heads(compiler: Callable[..., Any]) -> None:
    lengths = (1, 2, 3, 15, 16, 17, 32, 45, 64, 127, 128, 160, 200)
    made = compiler(count_variants, [(b, t, h) for t in lengths for b, h in ((1, 1), (2, 3), (16, 4))], 64)
    assert made.keys() > {"forward", "backward_keys", "backward_queries", "backward_tables", "rotate_backward"}
    assert made.pop("rotate_backward") <= 5  # members of a sum are a power of two, from 1 to 16
    assert set(made.values()) == {1}, made


def test_rows_that_do_not_lie_a_multiple_of_16_apart_have_a_kernel_of_their_own(compiler: Callable[..., Any]) -> None:
    """The other assumes that 16 bytes can be read at a time."""
    assert compiler(count_by_stride, [0, 16, 32], 64) == 1
    assert compiler(count_by_stride, [0, 1, 3], 64) == 2


class Copies(TorchDispatchMode):
    """Refuse what makes the host wait for a device, or copies from the host to it."""

    def __torch_dispatch__(self, function: Any, types: Any, given: tuple = (), named: dict | None = None) -> Any:
        name = function.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "lift_fresh", "_to_copy", "index", "nonzero"}, name
        return function(*given, **(named or {}))


@pytest.mark.parametrize("side", [-1, 0, 1])
@pytest.mark.parametrize("reach", [3, 40, 300])
def test_the_sums_of_a_table_are_put_in_order_without_the_host(side: int, reach: int) -> None:
    """Compare with a loop over distances."""
    tiles, m = 3, 16
    diagonals = tiles if side else 2 * tiles - 1
    sums = torch.randn(1, 2, diagonals, 2, m, dtype=torch.float64)
    order = {-1: [0, 1, 2], 1: [0, -1, -2], 0: [0, 1, -1, 2, -2]}[side]  # as the kernels number them
    expected = torch.zeros(2, 2 * reach + 1, dtype=torch.float64)
    for place, diagonal in enumerate(order):
        for distance in range(-m, m):
            index = min(max(diagonal * m + distance, -reach), reach) + reach
            expected[:, index] += sums[0, :, place].flatten(1)[:, distance + m]
    with Copies():
        actual = table_gradient(sums, torch.empty(2, 2 * reach + 1, dtype=torch.float64), side)
    torch.testing.assert_close(actual, expected)


# -- the benches -------------------------------------------------------------------------------------------------------


def test_tuning_gets_past_every_kernel(
    launches: list, looked_up: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """With the candidate that the table has: each runs, and is written as the fastest."""
    table = tmp_path / "blocks.json"
    table.write_text(tune.launch_parameters.TABLE_FILE.read_text())
    monkeypatch.setattr(tune.launch_parameters, "TABLE_FILE", table)
    monkeypatch.setattr(tune.launch_parameters, "device_architecture", lambda device: "sm_90")
    for name, value in {"HEADS": 1, "LENGTH": T, "TOKENS": T}.items():
        monkeypatch.setattr(tune, name, value)
    monkeypatch.setattr(tune, "_candidates", lambda kernel, dtype: iter(()))
    monkeypatch.setattr(tune._Step, "_time", lambda *given: 1.0)
    before = tune.launch_parameters.load_blocks()["sm_90"]
    tune.tune(DEVICE, seconds=1000)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(before)
    assert all("1.000 ms ->    1.000 ms" in line for line in lines), lines
    assert tune.launch_parameters.load_blocks()["sm_90"] == before
    tune.launch_parameters.load_blocks.cache_clear()


@pytest.mark.slow
def test_the_bench_of_kernels_gets_past_every_kind_of_terms(
    launches: list, looked_up: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 1)

    def ours(subject: bench.AttentionInputs, _: bench.AttentionSizes) -> dict[str, Callable[[], Tensor]]:
        return {"triton": lambda: attend(subject.q, subject.k, subject.v, subject.terms, subject.layout, "triton")}

    monkeypatch.setattr(bench, "implementations", ours)
    setting = bench.AttentionSizes(DEVICE, tokens=T, num_heads=H, head_dim=d, lengths=(T,))
    names = ["none", "t5", "lrope", "exposb", "forgetting", "rse", "stick_breaking"]
    rows = bench.compare_kernels(setting, tmp_path, config_folder() / "pe", names)
    assert [row["encoding"] for row in rows] == [name for name in names for _ in ("forward", "both")]
    assert {row["note"] for row in rows} == {""}
    assert_sound(launches, looked_up)
