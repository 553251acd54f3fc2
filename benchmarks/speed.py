"""Time an encoding in a plain model on a CPU: rope against transformers' rotary, and decoding against no encoding.

Both sides run in turn, and their times are those of the processor, so that other programs on the machine hardly count.
"""

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import run_benchmark
from benchmarks.plain import PlainLayer, PlainModel
from pe_lab.encodings import Stack, make
from pe_lab.system.arguments import Parser

WARM_UP = 3  # calls of each side that are not counted


def main() -> None:
    """Read the arguments and print the ratios."""
    parser = Parser("benchmarks speed", description=__doc__)
    parser.add_argument("--pairs", type=int, default=15, help="of timed calls (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch (%(default)s)")
    run_benchmark(parser, _time)


def _time(arguments: Namespace) -> None:
    if arguments.threads < 1:
        raise ValueError(f"--threads must be at least 1, got {arguments.threads}")
    torch.set_num_threads(arguments.threads)
    print_speed(ModelSizes(pairs=arguments.pairs))


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of the models.

    Args:
        width, num_heads: the sizes D and H.
        length: the length T of a training step.
        keys: the number of tokens in the cache when a decoding step begins.
        pairs: the number of pairs of timed calls.
        depths, batches: the depths and batch sizes of the models that decode; those that train have the first two batch
            sizes.
    """

    width: int = 512
    num_heads: int = 8
    length: int = 1024
    keys: int = 1000
    pairs: int = 15
    depths: tuple[int, ...] = (1, 6)
    batches: tuple[int, ...] = (1, 8)

    def stack(self, name: str, depth: int = 1, **options: Any) -> Stack:
        """Return an encoding by its name, for these sizes."""
        return make(name, width=self.width, num_heads=self.num_heads, depth=depth, length=self.length, **options)


@dataclass(frozen=True)
class Ratio:
    """Times of two calls in turn.

    Attributes:
        median, low, high: the median of the ratios of the pairs, and their lower and upper quartiles.
        milliseconds: the median times of both.
    """

    median: float
    low: float
    high: float
    milliseconds: tuple[float, float]


def compare(first: Callable[[], object], second: Callable[[], object], pairs: int) -> Ratio:
    """Time two calls in turn, each first in half of the pairs.

    Raises:
        ValueError: fewer than two pairs.
    """
    if pairs < 2:
        raise ValueError(f"--pairs must be at least 2, got {pairs}")
    for call in (first, second) * WARM_UP:
        call()
    times: list[tuple[float, float]] = []
    for index in range(pairs):
        taken = {}
        for call in (first, second) if index % 2 else (second, first):
            start = time.process_time()
            call()
            taken[call] = time.process_time() - start
        times.append((taken[first], taken[second]))
    low, median, high = statistics.quantiles((a / b for a, b in times), n=4)
    a, b = (1000 * statistics.median(side) for side in zip(*times, strict=True))
    return Ratio(median, low, high, (a, b))


class RotaryModel(nn.Module):
    """The layers of a plain model with the rotary embedding of transformers.

    Args:
        like: the plain model whose weights it gets.
    """

    def __init__(self, like: PlainModel, length: int) -> None:
        super().__init__()
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

        sizes = like.stack.first.sizes
        config = LlamaConfig(
            hidden_size=sizes.width, num_attention_heads=sizes.num_heads, max_position_embeddings=length
        )
        self.rotary, self.apply_rotary = LlamaRotaryEmbedding(config), apply_rotary_pos_emb
        mlp = like.layers[0].mlp is not None
        self.layers = nn.ModuleList(PlainLayer(sizes.width, sizes.num_heads, mlp) for _ in like.layers)
        self.layers.load_state_dict(like.layers.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.rotary(x, torch.arange(x.shape[1], device=x.device)[None])
        for layer in self.layers:
            assert isinstance(layer, PlainLayer)
            h = layer.norm(x)
            q, k, v = layer.project(h, h)
            q, k = self.apply_rotary(q, k, cos, sin)
            x = layer.add(x, scaled_dot_product_attention(q, k, v, is_causal=True))
        return x


def training(setting: ModelSizes, batch: int, pairing: str, mlp: bool) -> Ratio:
    """Time forward and backward passes of one layer with `rope` against those with transformers' rotary embedding.

    Raises:
        ValueError: the two models do not compute the same.
    """
    torch.manual_seed(0)
    ours = PlainModel(setting.stack("rope", pairing=pairing), "sdpa", mlp)
    other = RotaryModel(ours, setting.length)
    x = torch.randn(batch, setting.length, setting.width)
    with torch.no_grad():
        apart = (ours(x) - other(x)).abs().max().item()
    if pairing == "half" and not apart < 1e-4:
        raise ValueError(f"rope with pairing=half must equal transformers' rotary, got a difference of {apart:.1e}")

    def step(model: nn.Module) -> None:
        model.zero_grad()
        model(x).square().mean().backward()

    return compare(lambda: step(ours), lambda: step(other), setting.pairs)


@torch.no_grad()
def decoding(setting: ModelSizes, name: str, depth: int, batch: int, mlp: bool) -> Ratio:
    """Time one decoding step with an encoding against one without, at as many cached keys."""
    torch.manual_seed(0)
    x = torch.randn(batch, 1, setting.width)

    def step(name: str) -> Callable[[], object]:
        model = PlainModel(setting.stack(name, depth), "sdpa", mlp).eval()
        cache = model.stack.cache()
        model(torch.randn(batch, setting.keys, setting.width), None, cache)
        return lambda: model(x, None, cache)

    return compare(step(name), step("none"), setting.pairs)


def rows(setting: ModelSizes) -> Iterator[tuple[str, Ratio]]:
    """Yield what was timed and its ratio.

    Raises:
        ValueError: transformers is not installed.
    """
    if find_spec("transformers") is None:
        raise ValueError("speed compares with transformers, which must be installed: pip install transformers")
    for batch, mlp, pairing in product((1, 2), (True, False), ("half", "interleaved")):
        label = f"training, rope {pairing}, batch {batch}{'' if mlp else ', no MLP'}"
        yield label, training(setting, batch, pairing, mlp)
    for depth, batch, mlp, name in product(setting.depths, setting.batches, (True, False), ("rope", "alibi")):
        label = f"decoding, {name}, depth {depth}, batch {batch}{'' if mlp else ', no MLP'}"
        yield label, decoding(setting, name, depth, batch, mlp)


def print_speed(setting: ModelSizes) -> None:
    """Print the table of ratios."""
    print(f"{'':46} ratio  quartiles        ms against ms")
    for label, ratio in rows(setting):
        ours, other = ratio.milliseconds
        print(
            f"{label:46} {ratio.median:5.3f}  {ratio.low:.3f} to {ratio.high:.3f}  {ours:8.2f} {other:8.2f}", flush=True
        )
