"""Find the fastest blocks of every attention kernel on this GPU, and store them in attention/triton/blocks.json."""

import time
from collections.abc import Callable, Iterator
from itertools import product
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks import run_benchmark
from benchmarks.kernels import device_seconds, gpu
from pe_lab.attention.triton import launch_parameters, operators, stick_operators
from pe_lab.attention.triton.launch_parameters import Blocks
from pe_lab.system.arguments import Parser

HEADS, LENGTH, TOKENS = 16, 2048, 16384
KERNELS = ("forward", "backward_keys", "backward_queries", "backward_tables")
STICK = ("stick_forward", "stick_backward_queries", "stick_backward_keys", "stick_backward_tables")
DTYPES = (torch.bfloat16, torch.float32)
HEAD_DIMS = (64, 128, 32, 16)
LOADS = {"plain": (), "table": ("BIAS",), "mixed": ("BIAS", "GATE", "DECAY", "DROPOUT")}
SIZES = (16, 32, 64, 128)
ROUNDS = 5


def main() -> None:
    """Read the arguments and find the blocks."""
    parser = Parser("benchmarks tune", description=__doc__)
    parser.add_argument("--seconds", type=float, default=420, help="measure nothing further after this time")
    run_benchmark(parser, lambda arguments: tune(gpu("tune"), arguments.seconds))


def tune(device: torch.device, seconds: float) -> None:
    """Time every candidate that runs and store the fastest; entries that are not reached in time stay as they were."""
    began = time.perf_counter()
    architecture = launch_parameters.device_architecture(device)
    table = launch_parameters.load_blocks()
    part = dict(table.get(architecture) or table[launch_parameters.nearest_architecture(architecture)])
    for dtype, head_dim, load in product(DTYPES, HEAD_DIMS, LOADS):
        for kernel in KERNELS if load == "mixed" else (*KERNELS, *STICK):
            if kernel.endswith("backward_tables") and load == "plain":
                continue
            if time.perf_counter() - began > seconds:
                print(f"not reached in time: {kernel} {dtype} {head_dim} {load} and all that follow")
                launch_parameters.write_blocks(architecture, part)
                return
            entry = launch_parameters.blocks_key(kernel, dtype, head_dim, LOADS[load])
            step = _Step(device, dtype, head_dim, LOADS[load])
            times = {
                blocks: taken
                for blocks in dict.fromkeys((part[entry], *_candidates(kernel, dtype)))
                if (taken := step.milliseconds(kernel, blocks)) is not None
            }
            if not times:
                print(f"{entry:40} keeps its blocks: none runs", flush=True)
                continue
            best = min(times, key=times.__getitem__)
            print(
                f"{entry:40} {times.get(part[entry], float('nan')):8.3f} ms -> {times[best]:8.3f} ms {best}", flush=True
            )
            part[entry] = best
    launch_parameters.write_blocks(architecture, part)


def _candidates(kernel: str, dtype: torch.dtype) -> Iterator[Blocks]:
    """Yield the blocks to try for a kernel."""
    for m, n, warps, stages in product(SIZES, SIZES, (2, 4, 8), (1, 2, 3)):
        if kernel.endswith("backward_tables") and m != n:
            continue
        if 16 * 64 <= m * n <= (128 * 128 if dtype == torch.bfloat16 else 64 * 64) and m * n >= 256 * warps:
            yield Blocks(m, n, warps, stages)


class _Step:
    """A forward and backward pass in which the blocks of one kernel are replaced."""

    def __init__(self, device: torch.device, dtype: torch.dtype, head_dim: int, there: tuple[str, ...]) -> None:
        batch = TOKENS // LENGTH
        qkv = torch.randn(batch, LENGTH, 3, HEADS, head_dim, device=device).to(dtype).permute(2, 0, 3, 1, 4)
        self.inputs = [x.detach().requires_grad_() for x in qkv]
        vectors = {
            "BIAS": lambda: torch.randn(HEADS, 2 * LENGTH - 1, device=device),
            "GATE": lambda: torch.rand(HEADS, 2 * LENGTH - 1, device=device) + 0.5,
            "DECAY": lambda: -torch.rand(batch, HEADS, LENGTH, device=device).cumsum(-1),
        }
        self.terms = [vectors[name]().requires_grad_() if name in there else None for name in vectors]
        self.keys = torch.randint(2**32, (batch, HEADS), device=device) if "DROPOUT" in there else None
        self.upstream = torch.randn(batch, HEADS, LENGTH, head_dim, device=device).to(dtype)

    def milliseconds(self, kernel: str, blocks: Blocks) -> float | None:
        """Return the median time of a step with these blocks for one kernel; None if it does not run."""
        step = self._stick if kernel.startswith("stick") else self._softmax
        forward_only = kernel.endswith("forward")
        chosen = _replaced(launch_parameters.choose_blocks, kernel, blocks)
        with patch.object(operators, "choose_blocks", chosen), patch.object(stick_operators, "choose_blocks", chosen):
            try:
                self._run(step, forward_only)
                return median(self._time(step, forward_only) for _ in range(ROUNDS))
            except Exception as error:  # too much shared memory or too many registers, or any error of the compiler
                print(f"  {kernel} {blocks}: {' '.join(str(error).split())[:80]}")
                return None

    def _softmax(self) -> Tensor:
        scale = self.upstream.shape[-1] ** -0.5
        out: Tensor
        out, *_ = operators.softmax_attention(*self.inputs, *self.terms, None, self.keys, None, scale, True, 0.1)
        return out

    def _stick(self) -> Tensor:
        scale = self.upstream.shape[-1] ** -0.5
        how = {"down": True, "side": -1, "include_self": True, "to_itself": False}
        out: Tensor
        out, *_ = stick_operators.stick_attention(*self.inputs, self.terms[0], None, scale, **how)
        return out

    def _run(self, step: Callable[[], Tensor], forward_only: bool) -> None:
        out = step()
        if not forward_only:
            leaves = [*self.inputs, *(term for term in self.terms if term is not None)]
            torch.autograd.grad(out, leaves, self.upstream)

    def _time(self, step: Callable[[], Tensor], forward_only: bool) -> float:
        return 1000 * device_seconds(lambda: self._run(step, forward_only))


def _replaced(choose: Callable[..., Blocks], kernel: str, blocks: Blocks) -> Callable[..., Blocks]:
    """Return `choose` with the blocks of one kernel replaced; backward kernels of a stick share its tiles of keys."""

    def chosen(architecture: str, name: str, *rest: object) -> Blocks:
        return blocks if name == kernel else choose(architecture, name, *rest)

    return chosen
