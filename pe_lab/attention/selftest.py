"""Cases that compare the Triton kernels with the reference: values, and gradients of every tensor.

Each family of kernels is taken in float32 and in bfloat16, causal and not, with head dimensions of 16 to 128 and
lengths that leave tiles uncut. selftest_verdict.py runs them on a GPU in processes of their own, and keeps the verdict.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean, median

import torch
from torch import Tensor

from pe_lab.attention import reference, sdpa, triton
from pe_lab.attention.dropout import Dropout
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.terms import Rotary, Stick, Terms

DTYPES = (torch.float32, torch.bfloat16)
BATCH, HEADS, LENGTH = 2, 2, 300  # tiles have at most 128 tokens: two in a row are uncut
HEAD_DIMS = (64, 128, 16, 32, 40)
ERROR_FACTOR = 4  # a kernel's error may be so many times that of the reference in the same precision
# and what it may err anyway: three TF32 products keep 21 bits of 24, and one keeps 11
ERROR_FLOORS = {torch.float32: 2e-5, torch.bfloat16: 2.0**-8}
INTERPRETER_FACTOR = 2  # times more in Triton's interpreter, which cuts off the bits that a GPU rounds


@dataclass(frozen=True)
class CaseSizes:
    """The sizes of a case, and how its terms are drawn."""

    length: int
    head_dim: int
    generator: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=self.generator)

    def rotary(self, heads: int, half: bool = False, batch: int = 1) -> Rotary:
        """Return tables with the memory layout of projected tokens, [B, T, H, d/2]."""
        angle = 3 * self.normal(batch, self.length, heads, self.head_dim // 2).transpose(1, 2)
        return Rotary(angle.cos(), angle.sin(), "half" if half else "interleaved")

    def bias(self, heads: int) -> Tensor:
        return self.normal(heads, 2 * self.length - 1)

    def gate(self, heads: int) -> Tensor:
        return 1 + self.normal(heads, 2 * self.length - 1) / 5

    def decay(self) -> Tensor:
        return -self.normal(BATCH, HEADS, self.length).abs().cumsum(-1) / 10


def _rotary_terms(sizes: CaseSizes) -> Terms:
    rotary = sizes.rotary(HEADS)
    return Terms(rotary_q=rotary, rotary_k=rotary, gain=1 + sizes.normal(HEADS, sizes.head_dim) / 5)


def _rotated_sequences(sizes: CaseSizes) -> Terms:
    return Terms(rotary_q=sizes.rotary(HEADS, batch=BATCH), rotary_k=sizes.rotary(1, half=True, batch=BATCH))


def _window(sizes: CaseSizes) -> Terms:
    """Return windows that leave out tiles of both ends and keep whole tiles, for the first and for the second head."""
    return Terms(window=(sizes.length // 3, sizes.length * 4 // 5), distance_bias=sizes.bias(1))


def _rotated_halves(sizes: CaseSizes) -> Terms:
    return Terms(rotary_q=sizes.rotary(1, half=True), rotary_k=sizes.rotary(1, half=True), scale=0.1)


def _rotated_stick(sizes: CaseSizes) -> Terms:
    rotary = sizes.rotary(1)
    return Terms(rotary_q=rotary, rotary_k=rotary, distance_bias=sizes.bias(HEADS), normalizer=Stick(include_self=True))


FAMILIES: dict[str, Callable[[CaseSizes], Terms]] = {
    "softmax": lambda sizes: Terms(),
    "bias": lambda sizes: Terms(distance_bias=sizes.bias(HEADS)),
    "bias clipped": lambda sizes: Terms(distance_bias=sizes.normal(1, 81), clip=True),
    "gate": lambda sizes: Terms(logit_factors=sizes.gate(1)),
    "gate and bias": lambda sizes: Terms(logit_factors=sizes.gate(HEADS), distance_bias=sizes.bias(1)),
    "decay": lambda sizes: Terms(decay=sizes.decay()),
    "dropout": lambda sizes: Terms(),
    "documents": lambda sizes: Terms(distance_bias=sizes.bias(HEADS)),
    "rotation": _rotary_terms,
    "rotation of halves": _rotated_halves,
    "rotation of sequences": _rotated_sequences,
    "window": _window,
    "window documents": lambda sizes: Terms(window=(sizes.length // 5,)),
    "stick": lambda sizes: Terms(normalizer=Stick()),
    "stick own": lambda sizes: Terms(normalizer=Stick(include_self=True, remainder="own")),
    "stick first": lambda sizes: Terms(normalizer=Stick("first", include_self=True)),
    "stick first own": lambda sizes: Terms(normalizer=Stick("first", remainder="own")),
    "stick rotation": _rotated_stick,
    "stick documents": lambda sizes: Terms(normalizer=Stick(include_self=True)),
}


@dataclass(frozen=True)
class SelftestCase:
    """A family of kernels in one precision, with one head dimension."""

    family: str
    dtype: torch.dtype
    head_dim: int
    causal: bool
    length: int = LENGTH

    @property
    def name(self) -> str:
        kind = "causal" if self.causal else "both"
        return f"{self.family}, {str(self.dtype).removeprefix('torch.')}, {kind}, head_dim {self.head_dim}"


@dataclass(frozen=True)
class SelftestRow:
    """The outcome of a case.

    Attributes:
        tensor: the output, or the gradient, that is nearest to its bound or furthest beyond it.
        error: the largest difference of this tensor from float64, divided by the largest absolute value in float64.
        bound: the largest error with which the case passes.
    """

    case: str
    family: str
    dtype: str
    tensor: str
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.error <= self.bound  # NaN is not


def selftest_cases(length: int = LENGTH) -> list[SelftestCase]:
    """Return the cases: every family in both precisions, one of them causal, with alternating head dimensions."""
    cases = []
    for number, family in enumerate(FAMILIES):
        for turn, dtype in enumerate(DTYPES):
            head_dim = HEAD_DIMS[(number + 2 * turn) % len(HEAD_DIMS)]
            cases.append(SelftestCase(family, dtype, head_dim, (number + turn) % 2 == 0, length))
    for dtype in DTYPES:  # both kinds of attention in each precision for the two kernels that all others extend
        cases += [SelftestCase("bias", dtype, 64, causal, length) for causal in (True, False)]
        cases += [SelftestCase("stick", dtype, 64, causal, length) for causal in (True, False)]
    return list(dict.fromkeys(cases))


def compare_case(case: SelftestCase, device: torch.device) -> SelftestRow:
    """Run a case and return the kernels' largest error relative to its bound."""
    inputs = _Inputs(case)
    truth = inputs.results(reference, torch.device("cpu"), torch.float64)
    judge = inputs.results(reference, torch.device("cpu"), case.dtype)
    outputs = inputs.results(triton, device, case.dtype)
    factor = INTERPRETER_FACTOR if device.type == "cpu" else 1
    rows = []
    for name, exact in truth.items():
        size = float(exact.abs().max())
        error, judge_error = (float((x[name] - exact).abs().max()) / size for x in (outputs, judge))
        rows.append((error, factor * max(ERROR_FACTOR * judge_error, ERROR_FLOORS[case.dtype]), name))
    error, bound, tensor = max(rows, key=lambda row: float("inf") if row[0] != row[0] else row[0] / row[1])
    return SelftestRow(case.name, case.family, str(case.dtype).removeprefix("torch."), tensor, error, bound)


class _Inputs:
    """The tensors of a case in float64; queries, keys and values are numbers of the case's precision."""

    def __init__(self, case: SelftestCase) -> None:
        generator = torch.Generator().manual_seed(len(case.name))
        sizes = CaseSizes(case.length, case.head_dim, generator)
        qkv = sizes.normal(3, BATCH, HEADS, case.length, case.head_dim).to(case.dtype).double()
        self.case, self.terms = case, FAMILIES[case.family](sizes)
        self.upstream = sizes.normal(BATCH, HEADS, case.length, case.head_dim).to(case.dtype).double()
        self.qkv = dict(zip("qkv", qkv, strict=True))

    def layout(self, device: torch.device) -> Layout:
        """Return documents one after the other, or one that is padded in the second sequence."""
        T = self.case.length
        if "documents" in self.case.family:
            start = torch.tensor([0, T // 9, T // 2])
            segment = torch.bucketize(torch.arange(T), start, right=True) - 1
            pos = torch.arange(T) - start[segment]
            segment = torch.stack((segment, segment.clone()))
            segment[1, -(T // 12) :] = PADDING
            return Layout(pos[None], segment, self.case.causal).to(device)
        return Layout.of_lengths(torch.tensor([T, T - T // 4], device=device), T, self.case.causal)

    def results(self, module: object, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the output of the real tokens and all gradients in float64 on a CPU, by name."""
        layout, compute_dtype = self.layout(device), torch.promote_types(dtype, torch.float32)
        leaves = {name: _leaf(x, device, dtype) for name, x in self.qkv.items()}
        terms = self._terms(leaves, device, compute_dtype)
        dropout = Dropout(0.2, torch.tensor(3, device=device)) if self.case.family == "dropout" else None
        out: Tensor = module.attend(leaves["q"], leaves["k"], leaves["v"], terms, layout, dropout)  # type: ignore[attr-defined]
        is_token = (layout.segment != PADDING)[:, None, :, None]
        gradients = torch.autograd.grad(out, list(leaves.values()), self.upstream.to(device, out.dtype) * is_token)
        results = {"output": out * is_token} | {
            f"gradient of {name}": x for name, x in zip(leaves, gradients, strict=True)
        }
        return {name: x.detach().double().cpu() for name, x in results.items()}

    def _terms(self, leaves: dict[str, Tensor], device: torch.device, dtype: torch.dtype) -> Terms:
        """Return the terms on a device in a precision; their tensors are added to the leaves."""
        options: dict[str, object] = {
            name: getattr(self.terms, name) for name in ("clip", "scale", "normalizer", "window")
        }
        for name in ("distance_bias", "logit_factors", "decay", "gain"):
            if (table := getattr(self.terms, name)) is not None:
                options[name] = leaves[name] = _leaf(table, device, dtype)
        for name in ("rotary_q", "rotary_k"):
            if (rotary := getattr(self.terms, name)) is not None:
                cos, sin = (_leaf(x, device, dtype) for x in (rotary.cos, rotary.sin))
                leaves[f"{name}.cos"], leaves[f"{name}.sin"] = cos, sin
                options[name] = Rotary(cos, sin, rotary.pairing)
        return Terms(**options)  # type: ignore[arg-type]


def _leaf(x: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a tensor that gets a gradient of its own, also where x serves twice."""
    return x.detach().to(device, dtype).requires_grad_()


TIMING_ROUNDS = 5  # rounds of each timing
TIMED_LENGTHS = (64, 512, 4096)
TIMED_TOKENS, TIMED_HEADS, TIMED_HEAD_DIM = 8192, 8, 64


def timing_kind(terms: Terms, layout: Layout, dtype: torch.dtype) -> str | None:
    """Return the name of the timing of such terms with PyTorch's fused attention; None: they are not timed.

    That is for terms that are nothing or a rotation; whatever is added to the logits would be T x T numbers there.
    """
    untimed_terms = (
        terms.distance_bias,
        terms.logit_factors,
        terms.decay,
        terms.pair_bias,
        terms.content_bias,
        terms.relative_values,
        terms.weight_factors,
        terms.window,
    )
    if any(term is not None for term in untimed_terms) or isinstance(terms.normalizer, Stick):
        return None
    operation = "nothing" if terms.rotary_q is None and terms.rotary_k is None else "rotation"
    return f"{operation} {'causal' if layout.causal else 'both'} {str(dtype).removeprefix('torch.')}"


def time_kernels(device: torch.device) -> dict[str, dict[str, float]]:
    """Return milliseconds of triton and sdpa by `timing_kind`: forward and backward, geometric mean over lengths."""
    milliseconds: dict[str, dict[str, list[float]]] = {}
    for name, run in _races(device):
        by_backend = milliseconds.setdefault(name, {"triton": [], "sdpa": []})
        for implementation, module in (("triton", triton), ("sdpa", sdpa)):
            by_backend[implementation].append(_milliseconds(partial(run, module)))
    return {
        name: {backend: geometric_mean(times) for backend, times in by_backend.items()}
        for name, by_backend in milliseconds.items()
    }


def _races(device: torch.device) -> Iterator[tuple[str, Callable[[object], object]]]:
    """Yield what is timed: its kind, and a forward and backward pass by a module."""
    for length in TIMED_LENGTHS:
        angle = torch.randn(1, 1, length, TIMED_HEAD_DIM // 2, device=device)
        rotary = Rotary(angle.cos(), angle.sin())
        batch = TIMED_TOKENS // length
        for dtype in DTYPES:
            qkv = torch.randn(batch, length, 3, TIMED_HEADS, TIMED_HEAD_DIM, device=device).to(dtype)
            leaves = [x.detach().requires_grad_() for x in qkv.permute(2, 0, 3, 1, 4)]
            for causal in (True, False):
                layout = Layout.of_lengths(torch.full((batch,), length, device=device), length, causal)
                for terms in (Terms(), Terms(rotary_q=rotary, rotary_k=rotary)):
                    yield str(timing_kind(terms, layout, dtype)), _Pass(leaves, terms, layout)


@dataclass(frozen=True)
class _Pass:
    """A forward and backward pass of attention by a module."""

    leaves: list[Tensor]
    terms: Terms
    layout: Layout

    def __call__(self, module: object) -> tuple[Tensor, ...]:
        out: Tensor = module.attend(*self.leaves, self.terms, self.layout)  # type: ignore[attr-defined]
        return torch.autograd.grad(out, self.leaves, torch.ones_like(out))


def _milliseconds(run: Callable[[], object]) -> float:
    """Return the median time that a caller waits for a call: in small models the launches take most of it."""
    run()  # compiles
    times = []
    for _ in range(TIMING_ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return median(times)
