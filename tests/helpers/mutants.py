"""Change the defining lines of encodings one at a time, and name the test that fails.

    python tests/helpers/mutants.py [NAME ...]

Writes the table of mutants in docs/proofs.md; with NAMES, the rows of these encodings, or of these types of models of
transformers, alone. Each mutant is a text of a file, which occurs there once, and what stands in its place in a copy of
the package. A mutant that no test of its encoding, or of types of models, notices is an error.
"""

import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

# of files with the tests of several encodings, those of one of them, for pytest -k
ONLY = {
    "sum": "sum or add or together or smallest",
    "heads": "head",
    "interleave": "layers or turns",
    "rope_2d": "unit",
    # of all types of models, those of one
    **{
        kind: kind
        for kind in ("mistral", "gemma2", "qwen3", "gpt_neox", "phi3", "modernbert", "opt", "roberta", "bert")
    },
    **{kind: kind for kind in ("bloom", "mpt", "gpt2")},
    "deberta-v2": "deberta",
    "vit": "vit or images",
    **{kind: f"{kind} or layer or gemma" for kind in ("gemma3_text", "smollm3")},
    "t5": "t5 or buckets",
}
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/proofs.md"
OTHER_PACKAGE = 70  # an exit status that pytest does not have
TABLE = re.compile(r"(<!-- measured: mutants -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Mutant:
    """A changed line of an encoding, or of what replaces positions in a type of model.

    Args:
        encoding: its name, or the type of model.
        path: of the file, from the root of the repository.
        old: the text, which occurs once in the file.
        new: what replaces it.
        tests: files below tests that must notice, the first one first.
    """

    encoding: str
    path: Path
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.encoding}: {self.old} -> {self.new}"


def of(encoding: str, file: str, tests: str, *changes: tuple[str, str]) -> list[Mutant]:
    """Return the mutants of an encoding; its file and its tests are found by their names."""
    (path,) = (ROOT / ("conf/pe" if file.endswith(".yaml") else "pe_lab/encodings")).rglob(file)
    (place,) = (ROOT / "tests/encodings").rglob(f"test_{tests}.py")
    noticing = (place.relative_to(ROOT / "tests").as_posix(),)
    return [Mutant(encoding, path.relative_to(ROOT), old, new, noticing) for old, new in changes]


def of_model(kind: str, file: str, *changes: tuple[str, str]) -> list[Mutant]:
    """Return mutants of what replaces positions in a type of model of transformers, or of its own encoding."""
    tests = [f"hf/test_{name}.py" for name in ("model_families", "model_positions", "cache", "inputs")]
    others = kind in ("llama", "t5", "gpt2", "bert")  # types of all these tests
    path = Path("pe_lab", file if "/" in file else f"hf/{file}")
    return [Mutant(kind, path, old, new, tuple(tests if others else tests[:1])) for old, new in changes]


MUTANTS = [
    *of(
        "window",
        "window.py",
        "window",
        ("window=(self.window,)", "window=(self.window + 1,)"),
        ("window=(self.window,)", "window=(max(1, self.window - 1),)"),
        ("window=(self.window,)", "window=(None,)"),
    ),
    *of(
        "hard_alibi",
        "window.py",
        "window",
        ("range(1, self.windows + 1)", "range(2, self.windows + 2)"),
        ("(*range(1, self.windows + 1), *[None] * free)", "(*[None] * free, *range(1, self.windows + 1))"),
        ("sizes.num_heads // 2 if", "(sizes.num_heads + 1) // 2 if"),
    ),
    *of(
        "rnope_swa",
        "rnope_swa.yaml",
        "window",
        ("layers: [3, 1]", "layers: [1, 3]"),
        ("window: 4096", "window: 4095"),
        ("parts: [rope, {", "parts: [xpos, {"),
    ),
    *of(
        "nape",
        "nape.yaml",
        "bias",
        ("slopes: harmonic", "slopes: geometric"),
        ("  - {name: alibi, slopes: harmonic}\n  - none", "  - none\n  - {name: alibi, slopes: harmonic}"),
        ("shares: null", "shares: [1, 3]"),
    ),
    *of("nape", "bias.py", "bias", ("[1 / h for h in range(1, num_heads + 1)]", "[2**-h for h in range(num_heads)]")),
    *of(
        "vo_rope",
        "rotary_values.py",
        "rotary_values",
        ("rotary_out=inverse", "rotary_out=rotary"),
        ("rotary_v=rotary, rotary_out=inverse", "rotary_v=inverse, rotary_out=rotary"),
        ("met = rotary if self.queries_keys else None", "met = rotary"),
    ),
    *of(
        "urpe",
        "factors.py",
        "factors",
        ("weight_factors=self.factor.to(", "weight_factors=self.factor.flip(-1).to("),
        ("Terms(weight_factors=", "Terms(logit_factors="),
        (
            "Terms(weight_factors=self.factor.to(at_least_float32(h))",
            "Terms(weight_factors=self.factor.to(at_least_float32(h)).exp()",
        ),
    ),
    *of(
        "bam",
        "bias_gaussian.py",
        "bias_gaussian",
        ("ahead = ahead - 2 * self", "ahead = ahead + 2 * self"),
        ("beta * (ahead.abs() + self.eps).log() + log_scale", "beta * (ahead.abs() + self.eps).log() - log_scale"),
        ("beta * (ahead.abs()", "beta.abs() * (ahead.abs()"),
        (".sinh()", ""),
    ),
    *of(
        "carope",
        "rotary_content.py",
        "rotary_content",
        ("-nn.functional.softplus(z).log1p()", "-nn.functional.softplus(z)"),
        ("power = torch.arange(self.sizes.head_dim // 2, ", "power = torch.arange(1, self.sizes.head_dim // 2 + 1, "),
        (
            "project(h.to(at_least_float32(h)), self.weight) + self.shift",
            "project(h.to(at_least_float32(h)), self.weight)",
        ),
    ),
    *of(
        "mapformer",
        "rotary_content.py",
        "rotary_content",
        ("self.base**-exponent", "self.base**exponent"),
        ("torch.arange(1, circles + 1, dtype", "torch.arange(circles, dtype"),
        ("angle = self.omega.double() * torch", "angle = torch"),
    ),
    *of(
        "selective_rope",
        "rotary_content.py",
        "rotary_content",
        ("rotation(tau * cumulative_sums(step, layout)", "rotation(cumulative_sums(step, layout)"),
        ("step + self.bias.to(dtype).exp()", "step + self.bias.to(dtype)"),
        ("steps, self.kernel.to(dtype)", "steps, self.kernel.to(dtype)[:-1]"),
        ("+ 1e-6).rsqrt()).flatten", "+ 1e-6).reciprocal()).flatten"),
    ),
    *of(
        "lerope",
        "rotary.py",
        "rotary",
        ("self.alpha.double().exp() * super()", "(1 + self.alpha.double()) * super()"),
        ("self.alpha.double().exp() * super()", "(-self.alpha.double()).exp() * super()"),
        ("self.alpha.double().exp() * super()", "self.alpha.double().exp() + super()"),
    ),
    *of(
        "llama3",
        "rotary_scaled.py",
        "rotary_scaled",
        ('LLAMA3: dict[str, Any] = {"beta_fast": 4.0', 'LLAMA3: dict[str, Any] = {"beta_fast": 8.0'),
        ('"beta_slow": 1.0, "attention_factor": 1.0}', '"beta_slow": 1.0}'),
        ("omega * (share + (1 - share) / self.factor)", "omega / (share + (1 - share) * self.factor)"),
    ),
    *of(
        "longrope",
        "rotary_scaled.py",
        "rotary_scaled",
        ("document_lengths(layout) > self.original_length", "document_lengths(layout) >= self.original_length"),
        ("torch.where(beyond, long, short)", "torch.where(beyond, short, long)"),
        ("math.sqrt(1 + math.log(factor) /", "(1 + math.log(factor) /"),
        ("power = ntk_power(self) / pairs", "power = 1 / pairs"),
    ),
    *of(
        "rope",
        "rotary.py",
        "rotary_scaled",
        (
            "return frequencies(self.rotary_dim, self.theta, device)[None]",
            "return frequencies(self.sizes.head_dim, self.theta, device)[None][:, : self.rotary_dim // 2]",
        ),
        ("self.rotary_dim = rotary_dim or sizes.head_dim", "self.rotary_dim = sizes.head_dim"),
        ("elif rotary_dim > sizes.head_dim:", "elif rotary_dim >= sizes.head_dim:"),
    ),
    *of(
        "yarn",
        "rotary_scaled.py",
        "rotary_scaled",
        (
            "self._size(mscale or 1.0) / (self._size(mscale_all_dim)",
            "self._size(mscale or 1.0) * (self._size(mscale_all_dim)",
        ),
        ("        if self.truncate:\n", "        if True:\n"),
        ("scale_tables(super().rotation(h, layout), self.attention_factor)", "super().rotation(h, layout)"),
    ),
    *of(
        "resonance_rope",
        "rotary.py",
        "rotary",
        (".round().long()", ".floor().long()"),
        ("% wavelength\n", "% (wavelength + 1)\n"),
        ("angles(turned, FULL_TURN / wavelength.double()", "angles(turned, 1 / wavelength.double()"),
    ),
    *of(
        "clipped_rope",
        "rotary.py",
        "rotary",
        ("omega[:, first:] * (1 + (math.pi * share).cos()) / 2", "omega[:, first:] * (1 - share)"),
        ("/ max(1, self.clipped - 1)", "/ max(1, self.clipped)"),
        ("first = omega.shape[-1] - self.clipped", "first = 0"),
        ("math.ceil(5 * pairs / 16)", "5 * pairs // 16"),
    ),
    *of(
        "temperature",
        "scaled.py",
        "scaled",
        ("(layout.pos.clamp(min=0) + self.first)", "layout.pos.clamp(min=0)"),
        ('rounding_mode="floor"', "rounding_mode=None"),
        (".log1p()", ".log()"),
        ("1 + self.beta * steps", "1 - self.beta * steps"),
        ("sizes.length if original_length is None", "1 if original_length is None"),
    ),
    *of(
        "mrope",
        "rotary_axes.py",
        "rotary_axes",
        ("range(number, 3 * sections[number], 3)", "range(number, 3 * sections[number] + 3, 3)"),
        ("start = sum(sections[:number])", "start = sum(sections[number:])"),
        ("for axis in self.axis]", "for axis in reversed(self.axis)]"),
    ),
    *of(
        "inkling",
        "bias_content.py",
        "bias_content",
        ("(distance < 0) | (distance >= reach)", "(distance < 0) | (distance > reach)"),
        (".unflatten(-1, (self.sizes.num_heads, -1))", ".unflatten(-1, (-1, self.sizes.num_heads)).mT"),
        ("layout.max_distance + 1]", "layout.max_distance]"),
    ),
    *of(
        "wall",
        "decay.py",
        "decay",
        (".triu(1)", ".triu(0)"),
        ("(origin - decay[:, :, :first]).exp()", "(origin - decay[:, :, :first]).exp2()"),
        ("(decay[:, :, columns] - origin).exp()", "(origin - decay[:, :, columns]).exp()"),
        ("log_f.masked_fill((layout.segment == PADDING)[..., None], 0)", "log_f.roll(1, 1)"),
    ),
    *of(
        "tape",
        "rotary_updated.py",
        "rotary_updated",
        ("self.factor.to(dtype)[:, None, None] * mixed.to(dtype)", "self.factor.to(dtype)[:, None, None] * vectors"),
        ("return vectors + torch.einsum(", "return torch.einsum("),
        ('"bthg,bgtn->bhtn"', '"btgh,bgtn->bhtn"'),
        (
            "gate = silu(project(h.to(dtype), self.content.weight))",
            "gate = project(h.to(dtype), self.content.weight)",
        ),
        ("            vectors = vectors + self.factor", "            _ = vectors + self.factor"),
        ("torch.cat((start.cos, start.sin), -1)", "torch.cat((start.cos, -start.sin), -1)"),
        ("nn.init.zeros_(self.up)", "nn.init.normal_(self.up, std=INITIAL_STD)"),
    ),
    *of(
        "tape",
        "rotary_updated.py",
        "cache",
        ('layout.with_earlier("positions", queries.transpose(1, 2)).transpose(1, 2)', "queries"),
    ),
    *of(
        "grape_m",
        "grape.py",
        "grape",
        (" - step.double()", ""),
        ("self.bias) / self.scale).sigmoid()", "self.bias) * self.scale).sigmoid()"),
        ("self.beta.double().exp()", "self.beta.double()"),
    ),
    *of(
        "grape_a",
        "grape.py",
        "grape",
        ("normalize(vector.to(x.dtype), dim=-1, eps=1e-6)", "vector.to(x.dtype)"),
        ("return -layout.distance", "return layout.distance"),
        ("slopes * softplus(self.rate.to(dtype))", "slopes * self.rate.to(dtype)"),
        ("softplus(along * self.sizes.head_dim**-0.5)", "softplus(along)"),
    ),
    *of(
        "key_offset",
        "rotary_shifted.py",
        "rotary_shifted",
        ("self.theta**-exponents", "self.theta**exponents"),
        ("same_document[:, None, total - length :, None] & shifted", "shifted"),
        ("device=k.device) >= self.rotated", "device=k.device) < self.rotated"),
        ("(0, 0, 1, 0))", "(0, 0, 2, 0))"),
        ("sizes.head_dim // 4", "sizes.head_dim // 2"),
    ),
    *of(
        "rope_2d",
        "grid.py",
        "rotary_axes",
        ("FULL_TURN * centres", "math.pi * centres"),
        ("(2 * (layout.pos - low) + 1)", "(2 * (layout.pos - low))"),
        ("pos.where(same_document, most).amin(2)", "pos.amin(2)"),
    ),
    *of(
        "pope",
        "polar.py",
        "polar",
        ("angle + clamp_with_gradient", "angle - clamp_with_gradient"),
        ("frequencies(2 * d, self.theta", "frequencies(2 * d, self.theta**2"),
        ("-nn.functional.logsigmoid(-x32)", "nn.functional.relu(x32)"),
    ),
    *of(
        "ssmax",
        "scaled.py",
        "scaled",
        ("layout.key_count[:, None].to(dtype).log()", "(layout.key_count[:, None].to(dtype) + 1).log()"),
        ("layout.key_count[:, None].to(dtype).log()", "layout.key_count[:, None].to(dtype).sqrt()"),
        ("return q * self.factor, k", "return q, k * self.factor"),
    ),
    *of(
        "shape",
        "randomized.py",
        "shape",
        ("pos + shift.to", "pos - shift.to"),
        ("count = len(layout.segment) if drawn else 1", "count = 1"),
        ('{"max": largest, "middle"', '{"max": largest - 1, "middle"'),
    ),
    *of(
        "canon",
        "convolution.py",
        "canon",
        ("mixed = (h + causal_convolution(", "mixed = (causal_convolution("),
        ("return mixed, mixed", "return mixed, h"),
        (
            "causal_convolution(h.to(dtype), self.weight.to(dtype)",
            "causal_convolution(h.to(dtype), self.weight.flip(0).to(dtype)",
        ),
    ),
    *of(
        "tupe",
        "tupe.py",
        "tupe",
        ("(2 * self.sizes.head_dim) ** -0.5", "self.sizes.head_dim**-0.5"),
        ("first_key[:, None, None], added)", "first_query[:, None, None], added)"),
    ),
    *of("tupe", "bias_learned.py", "tupe", ("(distance < 0)", "(distance > 0)")),
    *of(
        "dape",
        "dape.py",
        "dape",
        ("adapted = added + self.mlp(", "adapted = self.mlp("),
        ("maps = block.maps(z, added)", "maps = block.maps(added, z)"),
        ("leaky_relu(hidden, inplace=True)", "leaky_relu(hidden, 0.1, inplace=True)"),
    ),
    *of(
        "dape_v2",
        "dape.py",
        "dape",
        (".flip(-1).permute(2, 0, 1)", ".permute(2, 0, 1)"),
        ("block.pairs(maps).masked_fill_(block.part(unseen), 0)", "pass"),
        ("rows[..., :end].masked_fill_(before[:, self.rows, :end], 0)", "pass"),
    ),
    *of(
        "path",
        "path.py",
        "path",
        ("beta = 2 * project(", "beta = project("),
        ("w = silu(causal_convolution(", "w = (causal_convolution("),
        ("(vectors @ keys.mT).tril(-1)", "(vectors @ keys.mT).tril()"),
        ("rows = rows - onto @ solved @ vectors", "rows = rows - onto @ solved.mT @ vectors"),
    ),
    *of(
        "sum",
        "merge.py",
        "combine",
        ("return sum(tensors[1:], tensors[0])", "return tensors[0]"),
        ("return min(sizes) if sizes else None", "return max(sizes) if sizes else None"),
    ),
    *of("sum", "combine.py", "combine", ("x = part.embed(x, part_layout)", "x = x + part.embed(x, part_layout)")),
    *of(
        "heads",
        "merge.py",
        "combine",
        ("[slice(end - count, end) for end,", "[slice(0, count) for end,"),
        ('"logit_factors": 1.0', '"logit_factors": 0.0'),
    ),
    *of(
        "heads",
        "combine.py",
        "combine",
        ("part_sizes = [replace(sizes, num_heads=count, ", "part_sizes = [replace(sizes, "),
    ),
    *of(
        "interleave",
        "combine.py",
        "combine",
        ("pattern[sizes.layer % len(pattern)]", "pattern[(sizes.layer + 1) % len(pattern)]"),
        ("self.is_first = sizes.layer == pattern.index(self.index)", "self.is_first = True"),
        ("for _ in range(count)]", "for _ in range(1)]"),
    ),
    *of(
        "abacus",
        "marked.py",
        "marked",
        ("(place + shifts[:, None]).where(place > 0, 0)", "place + shifts[:, None]"),
        ("place = marks.clamp(min=0)", "place = marks.clamp(min=1)"),
        ("torch.randint(self.max_shift + 1, (1,), ", "torch.randint(max(1, self.max_shift), (1,), "),
        ("(1,), generator=generator).expand(count)", "(count,), generator=generator)"),
        ("return self.max_shift if self.training else 0", "return self.max_shift"),
    ),
    *of(
        "coupled",
        "marked.py",
        "marked",
        ("torch.ones_like(marks[:, :1])", "torch.zeros_like(marks[:, :1])"),
        ("(marks + start).where(marks >= 0, 0)", "(marks + start).where(marks > 0, 0)"),
        ("start = 1 + (shifts * room)", "start = (shifts * room)"),
        ("marks.amax(1).clamp(min=0)", "marks.amax().clamp(min=0)"),
        ("len(self.table) - 1 - marks.amax(1)", "len(self.table) - 2 - marks.amax(1)"),
        ("torch.rand(count, ", "torch.rand(1, "),
    ),
    *of(
        "drope",
        "dropped.py",
        "dropped",
        ("done < self.drop_at", "done <= self.drop_at"),
        ("done < self.drop_at", "done >= self.drop_at"),
        (" * self.rotates.double()", ""),
        ("self.rotates.fill_(1.0)", "self.rotates.fill_(0.0)"),
        ('"rotates", torch.empty(()))', '"rotates", torch.empty(()), persistent=False)'),
    ),
    *of_model(
        "mistral",
        "attention.py",
        ('kwargs.get("sliding_window"), None', "None, None"),
        ('kwargs.get("sliding_window"), None', '(kwargs.get("sliding_window") or 10**6) + 1, None'),
    ),
    *of_model(
        "gemma2",
        "attention.py",
        ("None if cap is None else SoftCap(cap)", "None"),
        ("torch.tanh(z / self.cap) - z", "torch.tanh(z) - z"),
        ("(scaling * head_dim**0.5)", "(scaling * head_dim)"),
        ("scaling is not None and scaling !=", "False and scaling !="),
    ),
    *of_model(
        "llama",
        "attention.py",
        ("x.repeat_interleave(heads // x.shape[1], 1)", "x.repeat(1, heads // x.shape[1], 1, 1)"),
        ("if _differs_by_head(terms):", "if not _differs_by_head(terms):"),
    ),
    *of_model(
        "llama", "model_positions.py", ('float(self.parameters["rope_theta"])', "10_000.0"), ('"half"', '"interleaved"')
    ),
    *of_model(
        "qwen3",
        "model_families.py",
        (
            "part.rotary_emb = NoRotation()",
            "part.rotary_emb = NoRotation()\n"
            "    for each in part.modules():\n"
            '        for norm in {"q_norm", "k_norm"} & each._modules.keys():\n'
            "            setattr(each, norm, nn.Identity())",
        ),
        ("x.new_ones(1, 1, 1), x.new_zeros(1, 1, 1)", "x.new_ones(1, 1, 1), x.new_ones(1, 1, 1)"),
    ),
    *of_model(
        "gpt_neox",
        "model_positions.py",
        ('self.options["rotary_dim"] = rotated', "pass"),
        ('self.options["rotary_dim"] = rotated', 'self.options["rotary_dim"] = rotated // 2'),
    ),
    *of_model("gpt_neox", "hooks.py", ("(-1, 3, self.head_dim)", "(3, -1, self.head_dim)")),
    *of_model(
        "phi3",
        "hooks.py",
        ("start = out.shape[-1] - self.num_values", "start = out.shape[-1] * 2 // 3"),
        ("self.value = None if layer.value is layer.query_key else layer.value", "self.value = None"),
    ),
    *of_model(
        "gemma3_text",
        "model_positions.py",
        ("RotaryPositions(part, name))", "RotaryPositions(part, config.layer_types[0]))"),
        (
            "LayerwisePositions([types[name] for name in config.layer_types])",
            "LayerwisePositions([types[name] for name in config.layer_types[::-1]])",
        ),
        ("alike[0] if alike else", "alike[0] if alike or types else"),
        ("self.name is not None and name in self.others", "self.name is not None and name == self.name"),
    ),
    *of_model(
        "gemma3_text", "model_families.py", ('"use_bidirectional_attention", False', '"use_causal_attention", False')
    ),
    *of_model(
        "smollm3",
        "model_positions.py",
        ("kinds[bool(each)]", "kinds[not each]"),
        ("kinds[bool(each)]", "kinds[1]"),
        ("issubclass(encoding_class, RoPE)", "encoding_class is RoPE"),
    ),
    *of_model(
        "modernbert",
        "model_families.py",
        ('"Wqkv", fused="blocks", causal=False)', '"Wqkv", fused="blocks")'),
    ),
    *of_model(
        "opt",
        "model_families.py",
        ("weight[part.embed_positions.offset :]", "weight[: -part.embed_positions.offset]"),
        ('_opt_positions, _table("embed_positions")', "_opt_positions, _remove_nothing"),
    ),
    *of_model(
        "roberta",
        "model_families.py",
        ("weight[part.embeddings.padding_idx + 1 :]", "weight[part.embeddings.padding_idx :]"),
        ("config.max_position_embeddings - config.pad_token_id - 1", "config.max_position_embeddings"),
    ),
    *of_model(
        "t5",
        "model_positions.py",
        ("encoding.table.copy_(self.attention", "encoding.table.copy_(0.5 * self.attention"),
        ("(-distance, not causal,", "(-distance, causal,"),
        ("self.attention.relative_attention_max_distance,", "self.attention.relative_attention_max_distance + 1,"),
        ('"num_buckets": self.attention.relative_attention_num_buckets', '"num_buckets": 32'),
    ),
    *of_model("t5", "hooks.py", ("layer.query_key.new_zeros(1, 1, 1, 1)", "layer.query_key.new_ones(1, 1, 1, 1)")),
    *of_model(
        "t5",
        "model_families.py",
        ("del attention.relative_attention_bias", "attention.has_relative_attention_bias = True"),
    ),
    *of_model(
        "bloom",
        "rewritten.py",
        ("(self.num_heads, 3, -1)).unbind(-2)", "(3, self.num_heads, -1)).unbind(-3)"),
        ("self.inv_norm_factor, dropout", "1.0, dropout"),
        ("residual + dropped", "dropped"),
        ("self.attention_dropout.p if self.training else 0.0", "self.attention_dropout.p"),
    ),
    *of_model(
        "mpt",
        "rewritten.py",
        ("min=-self.clip_qkv, max=self.clip_qkv", "max=self.clip_qkv"),
        ("(3, self.n_heads, -1)).unbind(-3)", "(self.n_heads, 3, -1)).unbind(-2)"),
        ("self.attn_dropout_p if self.training else 0.0", "0.0"),
    ),
    *of_model(
        "bloom",
        "encodings/families/bias.py",
        ("[::2][: num_heads - power]", "[1::2][: num_heads - power]"),
        ("2 ** (-8 * (h + 1) / n)", "2 ** (-8 * h / n)"),
        ("geometric(power) +", "geometric(2 * power)[:power] +"),
    ),
    *of_model(
        "bert",
        "model_families.py",
        ("passes_zeros=True", "passes_zeros=False"),
        (
            "TablePositions(part.embeddings.position_embeddings.weight)",
            "TablePositions(part.embeddings.position_embeddings.weight.flip(0))",
        ),
        ('remove=_table("embeddings.position_embeddings")', "remove=_remove_nothing"),
        ('value="value",', 'value="query",'),
    ),
    *of_model(
        "gpt2",
        "model_families.py",
        ("TablePositions(part.wpe.weight)", "TablePositions(part.wpe.weight.flip(0))"),
        ('remove=_table("wpe")', "remove=_remove_nothing"),
        ('value="c_attn",\n        fused="blocks"', 'value="c_attn",\n        fused="heads"'),
    ),
    *of_model(
        "deberta-v2",
        "rewritten.py",
        ("self.attention_head_size**-0.5", "(3 * self.attention_head_size) ** -0.5"),
        ("dropout = self.dropout.p if self.training else 0.0", "dropout = self.dropout.p"),
    ),
    *of_model(
        "deberta-v2",
        "model_families.py",
        ('("pos_key_proj", "pos_query_proj")', '("pos_key_proj",)'),
        ("part.embeddings.position_embeddings = None", "pass"),
        ("        del encoder.rel_embeddings\n", ""),
        ('        encoder.norm_rel_ebd = ["none"]\n        del encoder.LayerNorm\n', "        pass\n"),
        ('passes_zeros=False,\n        mask="padding"', 'passes_zeros=False,\n        mask="any"'),
    ),
    *of_model(
        "vit",
        "model_families.py",
        ("position_embeddings[0])", "position_embeddings[0].flip(0))"),
        ("table.new_zeros(())", "table[:, :1].clone()"),
        ('object.__setattr__(part.embeddings, "interpolate_pos_encoding", _no_vectors)', "pass"),
        ("config.patch_size) ** 2 + 1", "config.patch_size) ** 2"),
        ("causal=False,\n        images=True", "images=True"),
    ),
    *of_model("vit", "hooks.py", ("        return (x,)\n", "        return args\n")),
]


class FirstFailure:
    """A pytest plugin that writes the name of the first test that fails to a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.file.exists():
            self.file.write_text(report.nodeid)


def caught_by(mutant: Mutant, copy: Path) -> str | None:
    """Return the first test that fails with a mutant; None: all pass.

    Args:
        copy: holds copies of the folders pe_lab and conf, as they are in this repository; left so.

    Raises:
        RuntimeError: pytest did not run, a file of tests cannot be collected, or another package was tested.
    """
    file, failure = copy / mutant.path, copy / "failure"
    text = file.read_text()
    failure.unlink(missing_ok=True)
    file.write_text(text.replace(mutant.old, mutant.new))
    try:
        child = os.fork()  # it has torch already, which takes longest, and imports the package anew
        if not child:
            only = ["-k", ONLY[mutant.encoding]] if mutant.encoding in ONLY else []
            _run(copy, [*(str(ROOT / "tests" / tests) for tests in mutant.tests), *only], failure)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        file.write_text(text)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"{mutant.name}: pytest ended with {code}")
    return failure.read_text().rpartition("/")[2].partition("[")[0] if failure.exists() else None


def _run(copy: Path, tests: list[str], failure: Path) -> NoReturn:
    """Run tests with the package in `copy` until one fails, and end this process with pytest's exit status."""
    code: int = OTHER_PACKAGE
    try:
        sys.path.insert(0, str(copy))
        sys.dont_write_bytecode = True
        with open(os.devnull, "w", encoding="utf-8") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        options = ["-p", "no:cacheprovider", "-x", "-q", "--tb=no", f"--rootdir={ROOT}", f"-c={ROOT}/pyproject.toml"]
        options += ["-o", f"pythonpath={copy} {ROOT} {ROOT}/tests"]  # that of the file has the package itself
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what the caller has imported
        for name, module in list(sys.modules.items()):  # what the caller has imported is not of the copy
            path = Path(getattr(module, "__file__", None) or "/")
            if path.is_relative_to(ROOT) and not path.is_relative_to(sys.prefix):  # an environment may lie in ROOT
                del sys.modules[name]
        code = int(pytest.main([*options, *tests], plugins=[FirstFailure(failure)]))
        package = sys.modules.get("pe_lab")  # no test has imported it if none was collected
        if package is not None and Path(package.__file__ or "").parent != copy / "pe_lab":
            code = OTHER_PACKAGE
    finally:
        os._exit(code)


def copied(folder: Path) -> Path:
    """Copy the package and its configuration."""
    for name in ("pe_lab", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def cell(text: str) -> str:
    """Return a text as code in a table."""
    return "`` " + text.replace("|", "\\|").replace("\n", " ⏎ ") + " ``" if text else "nothing"


def table(caught: dict[Mutant, str], page: str) -> str:
    """Return the table of the page, with its rows of mutants that were not run."""
    lines = ["| encoding | file | instead of | stands | caught by |", "| :--- | :--- | :--- | :--- | :--- |"]
    for mutant in MUTANTS:
        row = f"| `{mutant.encoding}` | `{mutant.path}` | {cell(mutant.old)} | {cell(mutant.new)} | "
        if mutant in caught:
            lines.append(f"{row}`{caught[mutant]}` |")
        else:
            lines += [line for line in page.splitlines() if line.startswith(row)]
    return "\n".join(lines)


def main() -> None:
    """Run the tests of all mutants and write which of them fail."""
    import torch

    torch.set_num_threads(1)  # a process with threads does not fork well
    caught: dict[Mutant, str] = {}
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for mutant in MUTANTS:
            if sys.argv[1:] and mutant.encoding not in sys.argv[1:]:
                continue
            test = caught_by(mutant, copy)
            print(f"{mutant.name}: {test}", flush=True)
            if test is None:
                survivors.append(mutant.name)
            else:
                caught[mutant] = test
    if survivors:
        sys.exit("\n".join(["nothing is written, no test fails with:", *survivors]))
    text = PAGE.read_text()
    PAGE.write_text(TABLE.sub(lambda part: f"{part[1]}{table(caught, text)}\n{part[2]}", text))
    print(f"{len(caught)} rows written to {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
