"""Attention with every encoding's terms: the Triton kernels, FlexAttention, PyTorch's fused attention, plain PyTorch.

Needs torch, triton and PyYAML alone, so that it runs where the rest of the lab is not installed.
"""

import csv
import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from pe_lab.attention import attend, resolve
from pe_lab.attention.reference import added_to_logits
from pe_lab.bench.presets import presets, terms_of
from pe_lab.encodings.base import PositionalEncoding, Rotary, Sizes, Stick, Terms
from pe_lab.encodings.bias import alibi_slopes
from pe_lab.encodings.layout import Layout

LENGTHS = (4096, 1024, 16384, 2048, 8192, 512, 256)  # in the order in which they are measured
SQUARES = 4096  # the longest sequence for what builds T x T numbers
BACK_ENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
BACK_ENDS |= {"efficient": SDPBackend.EFFICIENT_ATTENTION}
ROUNDS = 7
COLUMNS = ("encoding", "terms", "length", "implementation", "pass", "ms", "memory_mb", "tflops", "error", "note")


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Args:
        tokens: of a batch: B = tokens / T.
        num_heads, head_dim: H and d.
        lengths: T, in the order of measuring.
        seconds: after which no further row is begun.
    """

    device: torch.device
    dtype: torch.dtype = torch.bfloat16
    tokens: int = 16384
    num_heads: int = 16
    head_dim: int = 64
    lengths: tuple[int, ...] = LENGTHS
    seconds: float = 420


def compare_kernels(setting: Setting, folder: Path, configs: Path, names: list[str]) -> list[dict[str, object]]:
    """Measure, print, and write kernels-<device>.csv and .md into `folder`.

    Args:
        configs: conf/pe.
        names: of encodings; none: all that add something to attention.

    Raises:
        ValueError: there is no such encoding.
    """
    began = time.perf_counter()
    device_name = torch.cuda.get_device_name(setting.device) if setting.device.type == "cuda" else "cpu"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"kernels-{device_name.replace(' ', '-').lower()}.csv"
    rate = _matrix_rate(setting)
    encodings = presets(configs, names)
    rows: list[dict[str, object]] = []
    left_out: dict[str, str] = {}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for length in setting.lengths:
            for name, make in encodings.items():
                if time.perf_counter() - began > setting.seconds:
                    left_out[f"{name} at {length}"] = "the time was over"
                    continue
                subject = _subject(name, make, length, setting)
                if isinstance(subject, str):
                    left_out[name] = subject
                    continue
                for row in _measure(subject, setting):
                    rows.append(row)
                    writer.writerow(row)
                    file.flush()
                    print("  ".join(f"{row[column]!s:>12}" for column in COLUMNS), flush=True)
    path.with_suffix(".md").write_text(_page(rows, left_out, setting, device_name, rate))
    return rows


@dataclass(frozen=True)
class Subject:
    """An encoding's terms on one batch, cut off from what they were made of, so that only attention is timed."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    upstream: Tensor
    terms: Terms
    layout: Layout
    leaves: list[Tensor]

    @property
    def length(self) -> int:
        return self.q.shape[2]

    @property
    def inputs(self) -> list[Tensor]:
        """Everything that gets a gradient."""
        return [self.q, self.k, self.v, *self.leaves]


def _subject(name: str, make: Callable[[Sizes], PositionalEncoding], length: int, setting: Setting) -> Subject | str:
    """What is measured, or why it is not."""
    batch, heads, head_dim = max(1, setting.tokens // length), setting.num_heads, setting.head_dim
    try:
        terms, layout = terms_of(make, batch, length, heads, head_dim, setting.device)
    except ValueError as error:
        return str(error)
    terms, leaves = _cut_off(terms)
    if name != "none" and terms == Terms():
        return "adds nothing to attention: as none"
    qkv = torch.randn(batch, length, 3, heads, head_dim, device=setting.device).to(setting.dtype)
    q, k, v = (x.detach().requires_grad_() for x in qkv.permute(2, 0, 3, 1, 4))
    try:
        resolve("triton", q, terms, layout)
    except ValueError as error:
        return str(error)
    upstream = torch.randn(batch, length, heads, head_dim, device=setting.device).to(setting.dtype).transpose(1, 2)
    return Subject(name, q, k, v, upstream, terms, layout, leaves)


def _cut_off(terms: Terms) -> tuple[Terms, list[Tensor]]:
    """The same terms as leaves, and those of them that are trained."""
    leaves: list[Tensor] = []

    def leaf(tensor: Tensor) -> Tensor:
        cut = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        if cut.requires_grad:
            leaves.append(cut)
        return cut

    cut: dict[str, object] = {}
    for field in fields(terms):
        value = getattr(terms, field.name)
        if isinstance(value, Rotary):
            same = field.name == "rotary_k" and value is terms.rotary_q
            value = cut["rotary_q"] if same else replace(value, cos=leaf(value.cos), sin=leaf(value.sin))
        cut[field.name] = leaf(value) if isinstance(value, Tensor) else value
    return Terms(**cut), leaves


def _implementations(subject: Subject, setting: Setting) -> dict[str, Callable[[], Tensor]]:
    """Calls that compute the same, by name."""
    terms, layout = subject.terms, subject.layout
    q, k, v = subject.q, subject.k, subject.v
    on_gpu = setting.device.type == "cuda"
    compiled = torch.compile if on_gpu else lambda function: function
    meet = compiled(_meet) if terms.rotary_q is not None else _meet
    calls = {"triton": lambda: attend(q, k, v, terms, layout, "triton")}
    squares = subject.length <= SQUARES
    added = any(term is not None for term in (terms.bias, terms.decay))
    if squares:
        calls["reference"] = lambda: attend(q, k, v, terms, layout, "reference")
    if isinstance(terms.weights, Stick):
        return calls  # nobody else breaks sticks
    if terms.gate is None and on_gpu and (squares or not added):
        for name, back_end in BACK_ENDS.items():

            def fused(back_end: SDPBackend = back_end) -> Tensor:
                with sdpa_kernel(back_end):
                    mask = None
                    if added:
                        mask = added_to_logits(terms, layout).masked_fill(~layout.allowed, -torch.inf)
                        mask = mask.to(q.dtype).expand(len(q), -1, -1, -1)
                    met = meet(q, terms.rotary_q, terms.gain), meet(k, terms.rotary_k, terms.gain)
                    return scaled_dot_product_attention(*met, v, mask, is_causal=not added, scale=terms.scale)

            calls[f"sdpa {name}"] = fused
    flex = compiled(flex_attention)
    blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, subject.length, subject.length, setting.device)
    score = _score_function(subject)

    def general() -> Tensor:
        met = meet(q, terms.rotary_q, terms.gain), meet(k, terms.rotary_k, terms.gain)
        return flex(*met, v, score_mod=score, block_mask=blocks, scale=terms.scale)

    calls["flex"] = general
    return calls


def _score_function(subject: Subject) -> Callable | None:
    """FlexAttention's score_mod of these terms."""
    bias, gate, decay = subject.terms.bias, subject.terms.gate, subject.terms.decay
    if subject.name == "alibi":  # what one would write by hand, without a table
        slopes = torch.tensor(alibi_slopes(subject.q.shape[1]), device=subject.q.device)
        return lambda z, b, h, i, j: z - slopes[h] * (i - j).abs()
    if bias is None and gate is None and decay is None:
        return None

    def entry(table: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        reach = (table.shape[1] - 1) // 2
        return table[h if table.shape[0] > 1 else 0, (i - j).clamp(-reach, reach) + reach]

    def score(z: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if gate is not None:
            z = z * entry(gate, h, i, j)
        if bias is not None:
            z = z + entry(bias, h, i, j)
        if decay is not None:
            z = z + (decay[b, h, i] - decay[b, h, j])
        return z

    return score


def _meet(x: Tensor, rotary: Rotary | None, gain: Tensor | None) -> Tensor:
    """Queries or keys as they meet, in real numbers, which torch.compile fuses."""
    dtype = x.dtype
    if rotary is not None:
        half = rotary.pairing == "half"
        a, b = x.chunk(2, -1) if half else x.unflatten(-1, (-1, 2)).unbind(-1)
        turned = a * rotary.cos - b * rotary.sin, a * rotary.sin + b * rotary.cos
        x = torch.cat(turned, -1) if half else torch.stack(turned, -1).flatten(-2)
    return (x if gain is None else x * gain[:, None]).to(dtype)


def _measure(subject: Subject, setting: Setting) -> list[dict[str, object]]:
    """A row per implementation and pass, timed in turn."""
    there = [f.name for f in fields(Terms) if getattr(subject.terms, f.name) != getattr(Terms(), f.name)]
    terms = ("+".join(there) or "nothing") + (" (trained)" if subject.leaves else "")
    rows: list[dict[str, object]] = []
    timed: list[tuple[dict[str, object], Callable, list[float]]] = []
    first: Tensor | None = None
    for name, call in _implementations(subject, setting).items():
        for which, run in {"forward": torch.no_grad()(call), "both": partial(_both, call, subject)}.items():
            row = dict.fromkeys(COLUMNS, "") | {"encoding": subject.name, "terms": terms, "length": subject.length}
            row |= {"implementation": name, "pass": which}
            rows.append(row)
            try:
                out, memory = _once(run, setting.device)
            except (RuntimeError, ValueError, torch.cuda.OutOfMemoryError) as error:
                row["note"] = " ".join(str(error).split())[:120] or type(error).__name__
                continue
            row["memory_mb"] = round(memory / 2**20, 1)
            if which == "forward":
                first = out.float() if first is None else first
                row["error"] = f"{(out.float() - first).norm() / first.norm():.1e}"
            timed.append((row, run, []))
            del out
            gc.collect()
    for _ in range(ROUNDS):
        for _, run, taken in timed:
            taken.append(_seconds(run, setting.device))
    B, H, T, d = subject.q.shape
    for row, _, taken in timed:
        row["ms"] = round(1000 * median(taken), 4)
        work = 2 * B * H * T * T * d * (1 if row["pass"] == "forward" else 3.5)  # causal: half of 4 T^2 d
        row["tflops"] = round(work / median(taken) / 1e12, 1)
    return rows


def _both(call: Callable[[], Tensor], subject: Subject) -> Tensor:
    """The gradient of q, and all others."""
    return torch.autograd.grad(call(), subject.inputs, subject.upstream)[0]


def _once(run: Callable, device: torch.device) -> tuple[Tensor, int]:
    """What a call returns first, and the most bytes that were held beyond what there was."""
    run()  # compiles
    if device.type != "cuda":
        return run(), 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = run()
    torch.cuda.synchronize()
    return out, torch.cuda.max_memory_allocated() - before


def _seconds(run: Callable, device: torch.device) -> float:
    """Of one call."""
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)  # the launches are queued before the clock starts
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def _matrix_rate(setting: Setting) -> float:
    """TFLOP/s of a large matrix product in this dtype."""
    size = 8192 if setting.device.type == "cuda" else 256
    a, b = (torch.randn(size, size, device=setting.device).to(setting.dtype) for _ in range(2))
    taken = [_seconds(lambda: a @ b, setting.device) for _ in range(10)]
    return 2 * size**3 / median(taken) / 1e12


def _page(rows: list[dict], left_out: dict[str, str], setting: Setting, device: str, rate: float) -> str:
    """Markdown: milliseconds of forward and backward, and how triton compares."""
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    lines = [
        f"# Attention with every encoding's terms on {device}",
        "",
        f"torch {torch.__version__}, {str(setting.dtype).removeprefix('torch.')}, d = {setting.head_dim}, "
        f"H = {setting.num_heads}, B T = {setting.tokens}, causal. Milliseconds forward + backward, medians of "
        f"{ROUNDS} rounds in turn; TFLOP/s of triton; matrix rate {rate:.0f} TFLOP/s. Rotation is included everywhere.",
        "",
        f"| encoding | terms | T | {' | '.join(names)} | TFLOP/s | flex / triton | flash / triton |",
        f"|{'---|' * (6 + len(names))}",
    ]
    of: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        if row["pass"] == "both":
            of.setdefault((row["encoding"], row["terms"], row["length"]), {})[row["implementation"]] = row
    for (encoding, terms, length), by_name in sorted(of.items(), key=lambda item: (item[0][2], item[0][0])):
        ms = {name: by_name[name]["ms"] if name in by_name else "" for name in names}
        ratios = [_ratio(ms.get(name), ms.get("triton")) for name in ("flex", "sdpa flash")]
        cells = [encoding, terms, length, *ms.values(), by_name["triton"]["tflops"], *ratios]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "Not measured:", *(f"- {name}: {why}" for name, why in left_out.items())] if left_out else []
    return "\n".join(lines) + "\n"


def _ratio(other: object, own: object) -> str:
    return f"{other / own:.2f}" if other and own and math.isfinite(own) else ""
