"""Measure what an encoding costs relative to `none`: operations, time, memory."""

import weakref
from collections.abc import Callable
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pe_lab.attention import resolve
from pe_lab.audit.audited_encoding import LENGTH, WIDTH, AuditedEncoding

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
FLOPS_LENGTH = 512
REPETITIONS = (3, 9)  # the fewest and the most repetitions
MAX_MEMORY = 3 * 2**30  # bytes; limit of one measurement

LEGEND = {
    "attention": "The implementation that runs one layer on a CPU: sdpa, PyTorch's fused attention, or the reference, "
    "which forms all T x T weights; both where layers differ in it.",
    "extra_flops": f"Operations of matrix products and convolutions per token at T = {FLOPS_LENGTH}, minus those of "
    "`none` (torch's FlopCounterMode, per layer, reference attention).",
    "extra_elements": f"Numbers that elementwise operations write per token at T = {FLOPS_LENGTH}, minus those of "
    "`none` (operations that PyTorch tags as pointwise, per layer, reference attention; a complex number is two).",
    "time_T": "CPU time of one attention layer forward, or of a round of them where they differ (batch 1, float32, one "
    "thread, causal, by the implementation in "
    f"`attention`) over that of `none`: medians of {REPETITIONS[0]} to {REPETITIONS[1]} repetitions, in turns. "
    "Positions, tables and masks are formed anew each time, as for a new batch; here and in the two columns before, "
    "tables of limited length (`max_len`) are made long enough.",
    "memory_T": "Peak bytes of tensors during that forward pass, over those of `none` (counted at every PyTorch "
    "operation; memory inside an operation is not counted).",
}
COST_COLUMNS = [name for name in LEGEND if not name.endswith("_T")]
COST_COLUMNS += [f"{name.removesuffix('T')}{T}" for name in LEGEND if name.endswith("_T") for T in LENGTHS]


class Meter(TorchDispatchMode):
    """Counts bytes of living tensors and numbers written elementwise, over the operations that run in its context.

    Attributes:
        peak: the most bytes that tensors made in its context held at once.
        elements: the number of floating-point numbers that pointwise operations wrote.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        for tensor in tree_leaves(out):
            if not isinstance(tensor, Tensor):
                continue
            if torch.Tag.pointwise in func.tags and (tensor.is_floating_point() or tensor.is_complex()):
                self.elements += tensor.numel() * (2 if tensor.is_complex() else 1)
            storage = tensor.untyped_storage()
            if storage._cdata not in inputs:  # neither a view nor written in place
                self.alive += storage.nbytes()
                self.peak = max(self.peak, self.alive)
                weakref.finalize(storage, self._release, storage.nbytes())
        return out

    def _release(self, count: int) -> None:
        self.alive -= count


def attention_layers(subject: AuditedEncoding, depth: int, length: int, implementation: str) -> Callable[[], Tensor]:
    """Return a function that runs attention layers on random tokens, positions included, in float32.

    Args:
        depth: the number of layers; each gets the same tokens.

    Raises:
        ValueError: the encoding is not defined at these positions; raised when the function runs.
    """
    subject = subject.with_length(length)
    model = subject.model(depth=depth, dtype=torch.float32)
    attentions = [model.layer(index).attention for index in range(depth)]
    x = torch.randn(1, length, WIDTH, generator=torch.Generator().manual_seed(length))

    def forward() -> Tensor:
        h, positions = model.encodings(x, subject.layout(length))
        out: Tensor = h
        for index, attention in enumerate(attentions):
            out = attention(*positions.layer(index, h), implementation)
        return out

    return forward


def measure_costs(
    subject: AuditedEncoding, none: AuditedEncoding, seconds: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the cost columns of one row, and the reason for each empty one.

    Args:
        none: the encoding `none`, with which it is compared.
        seconds: the time limit of all measurements of time and memory together, in seconds. A length that is expected
            to exceed the remaining time, or MAX_MEMORY bytes, is not measured, nor any longer one.
    """
    cells: dict[str, Any] = {}
    try:
        reason = _measure(cells, subject, none, seconds)
    except ValueError as error:
        reason = str(error)
    return cells, {column: reason for column in COST_COLUMNS if column not in cells}


@torch.no_grad()
def _measure(cells: dict[str, Any], subject: AuditedEncoding, none: AuditedEncoding, seconds: float) -> str:
    """Fill the cells in order; return the reason for those that stay empty."""
    cells["attention"] = _implementation(subject)
    depth = len(subject.model().layers)  # a round of layers, if they differ
    flops = [s.with_length(FLOPS_LENGTH).model(depth=depth).flops_per_token(FLOPS_LENGTH) for s in (subject, none)]
    cells["extra_flops"] = (flops[0] - flops[1]) / depth
    elements = [_run_metered(attention_layers(s, depth, FLOPS_LENGTH, "reference")).elements for s in (subject, none)]
    cells["extra_elements"] = (elements[0] - elements[1]) / FLOPS_LENGTH / depth
    end, elapsed, peak = perf_counter() + seconds, 0.0, 0
    for index, length in enumerate(LENGTHS):
        remaining = end - perf_counter()
        # the cost of T x T: four times the cost of half the length, and more for cache misses
        if 5 * elapsed > remaining:
            return f"beyond {seconds:g} s"
        if 4 * peak > MAX_MEMORY:
            return f"beyond {MAX_MEMORY / 2**30:g} GB"
        pair, start = [attention_layers(s, depth, length, "auto") for s in (subject, none)], perf_counter()
        meters = [_run_metered(forward) for forward in pair]
        elapsed, peak = perf_counter() - start, meters[0].peak
        cells[f"memory_{length}"] = peak / meters[1].peak
        if REPETITIONS[0] * elapsed > end - perf_counter():
            return f"beyond {seconds:g} s"
        times = _median_seconds(pair, until=perf_counter() + remaining / (len(LENGTHS) - index))
        elapsed = sum(times)
        cells[f"time_{length}"] = times[0] / times[1]
    return ""


def _median_seconds(pair: list[Callable[[], Tensor]], until: float) -> list[float]:
    """Return the median CPU seconds of each; at most REPETITIONS[1], and no more than REPETITIONS[0] after `until`."""
    times: list[list[float]] = [[] for _ in pair]
    while len(times[0]) < REPETITIONS[0] or (len(times[0]) < REPETITIONS[1] and perf_counter() < until):
        for forward, taken in zip(pair, times, strict=True):
            start = thread_time()
            forward()
            taken.append(thread_time() - start)
    return [median(taken) for taken in times]


def _run_metered(forward: Callable[[], Tensor]) -> Meter:
    """Run a function once under a meter."""
    meter = Meter()
    with meter:
        forward()
    return meter


def _implementation(subject: AuditedEncoding) -> str:
    """Return the implementation that attention=auto chooses on a CPU; all of them where layers differ."""
    model = subject.model(dtype=torch.float32)
    h, positions = model.encodings(torch.zeros(1, LENGTH, WIDTH), subject.layout(LENGTH))
    names = []
    for index in range(len(model.layers)):
        h_qk, h_v, terms, layout = positions.layer(index, h)
        q, _, _ = model.layer(index).attention.project(h_qk, h_v)
        names.append(resolve("auto", q, terms, layout))
    return ", ".join(dict.fromkeys(names))
