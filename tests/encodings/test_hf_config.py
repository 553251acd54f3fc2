"""The encoding of a config.json has the frequencies and the factor that transformers makes of it.

Their functions compute in float32. Here they run on a torch whose float32 is float64, so that what is left is rounding.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import hydra
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers.configs import pe_settings
from pe_lab.attention import attend
from pe_lab.config import expand_overrides
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.hf_config import ENCODING_OF_TYPE, encoding_of_config, read_encoding
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.named import factory
from pe_lab.encodings.options import OptionError
from pe_lab.encodings.sizes import Sizes

F32 = torch.finfo(torch.float32).eps
LONG = [1.0 + 0.6 * c for c in range(48)]
SHORT = [1.0 + 0.01 * c for c in range(48)]
SIZE = {"hidden_size": 256, "num_attention_heads": 2, "max_position_embeddings": 131072}


@dataclass(frozen=True)
class Checkpoint:
    """A config.json, and the positions at which its rotations are compared."""

    config: dict[str, Any]
    lengths: tuple[int, ...] = (9, 3000)


def scaled(kind: str, theta: float = 10_000.0, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **parameters}}


def old(kind: str, theta: float = 10_000.0, **parameters: Any) -> dict[str, Any]:
    return {"rope_theta": theta, "rope_scaling": {"type": kind, **parameters}}


ORIGINAL = {"original_max_position_embeddings": 4096}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
CHECKPOINTS = {  # shapes of released configurations
    "default, Llama 3": Checkpoint({**SIZE, **scaled("default", 500_000.0)}),
    "default, before transformers 5": Checkpoint({**SIZE, "rope_theta": 1_000_000.0}),
    "default, a quarter, as GPT-NeoX": Checkpoint({**SIZE, "rotary_pct": 0.25, "rotary_emb_base": 10_000}),
    "default, 32 of 80, as Phi-2": Checkpoint(
        {**SIZE, "hidden_size": 160, "partial_rotary_factor": 0.4, "rope_theta": 10_000.0, "rope_scaling": None}
    ),
    "default, head_dim of its own, half, as GLM": Checkpoint(
        {**SIZE, "head_dim": 64, **scaled("default", partial_rotary_factor=0.5)}
    ),
    "linear, as CodeLlama": Checkpoint({**SIZE, **old("linear", 1_000_000.0, factor=4.0)}),
    "linear, a half": Checkpoint({**SIZE, **scaled("linear", factor=2.5, partial_rotary_factor=0.5)}),
    "dynamic": Checkpoint({**SIZE, **old("dynamic", factor=2.0), "max_position_embeddings": 512}, (9, 512, 513, 3000)),
    "dynamic, a half": Checkpoint(
        {**SIZE, **scaled("dynamic", factor=1.0, partial_rotary_factor=0.5), "max_position_embeddings": 512}, (9, 3000)
    ),
    "yarn, as Qwen 2.5": Checkpoint(
        {**SIZE, **old("yarn", 1_000_000.0, factor=4.0, original_max_position_embeddings=32768)}
    ),
    "yarn, factor from the lengths": Checkpoint({**SIZE, **scaled("yarn", factor=None, **ORIGINAL)}),
    "yarn, as DeepSeek's settings": Checkpoint(
        {**SIZE, **scaled("yarn", factor=40, mscale=1.0, mscale_all_dim=0.707, beta_fast=32, beta_slow=1, **ORIGINAL)}
    ),
    "yarn, as gpt-oss": Checkpoint(
        {**SIZE, "head_dim": 64, **scaled("yarn", 150_000.0, factor=32.0, truncate=False, **ORIGINAL)}
    ),
    "yarn, attention_factor": Checkpoint(
        {**SIZE, **scaled("yarn", factor=8.0, attention_factor=0.75, mscale=2.0, mscale_all_dim=1.0, **ORIGINAL)}
    ),
    "yarn, mscale alone is not read": Checkpoint({**SIZE, **scaled("yarn", factor=8.0, mscale=2.0, **ORIGINAL)}),
    "yarn, a quarter, no width": Checkpoint(
        {**SIZE, **scaled("yarn", factor=4.0, original_max_position_embeddings=6, partial_rotary_factor=0.25)}
    ),
    "llama3, as Llama 3.1": Checkpoint({**SIZE, **scaled("llama3", 500_000.0, factor=8.0, **BANDS)}),
    "llama3, as Llama 3.2": Checkpoint(
        {**SIZE, "head_dim": 64, **old("llama3", 500_000.0, factor=32.0, rope_type="llama3", **BANDS)}
    ),
    "llama3, other bands, a half": Checkpoint(
        {
            **SIZE,
            **scaled("llama3", factor=3.0, partial_rotary_factor=0.5),
            **{"rope_parameters": {**scaled("llama3", factor=3.0)["rope_parameters"], **BANDS, "low_freq_factor": 2.5}},
        }
    ),
    "longrope, as Phi-3": Checkpoint(
        {
            **SIZE,
            "hidden_size": 192,
            **ORIGINAL,
            "rope_theta": 10_000.0,
            "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
        },
        (9, 4096, 4097, 9000),
    ),
    "longrope, three quarters, as Phi-4-mini": Checkpoint(
        {
            **SIZE,
            "partial_rotary_factor": 0.75,
            **scaled("longrope", factor=16.0, short_factor=SHORT, long_factor=LONG, attention_factor=1.25, **ORIGINAL),
        },
        (9, 9000),
    ),
    "proportional, as Gemma": Checkpoint({**SIZE, **scaled("proportional", 1e6, partial_rotary_factor=0.25)}),
    "proportional, with a factor": Checkpoint(
        {**SIZE, **scaled("proportional", partial_rotary_factor=0.5, factor=8.0)}
    ),
}


class WideTensor(Tensor):
    """Integers whose float() is in float64."""

    def float(self) -> Tensor:  # type: ignore[override]
        return self.as_subclass(Tensor).double()


class WideTorch(ModuleType):
    """torch, with float64 for float32."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def arange(self, *args: Any, **options: Any) -> Tensor:
        made = torch.arange(*args, **options)
        return made if made.is_floating_point() else made.as_subclass(WideTensor)


def imported() -> ModuleType:
    """Return the module of rope types; before version 5 its functions take other configurations."""
    pytest.importorskip("transformers", minversion="5")
    from transformers import modeling_rope_utils

    return modeling_rope_utils


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    rope = imported()
    monkeypatch.setattr(rope, "torch", WideTorch("torch"))
    return rope


def theirs(rope: ModuleType, config: dict[str, Any], length: int) -> tuple[Tensor, float]:
    """Return the frequencies and the factor of transformers for sequences of a length."""
    from transformers import LlamaConfig

    renamed = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
    made = LlamaConfig(**{renamed.get(key, key): value for key, value in config.items()})
    parameters = made.rope_parameters
    share = config.get("partial_rotary_factor", config.get("rotary_pct"))
    if share is not None:
        parameters.setdefault("partial_rotary_factor", share)
    if "original_max_position_embeddings" in config:
        parameters["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    if parameters["rope_type"] == "default":
        parameters |= {"factor": 1.0}
        parameters["rope_type"] = "linear"
    actual = rope.ROPE_INIT_FUNCTIONS[parameters["rope_type"]](made, seq_len=length)
    return actual[0].as_subclass(Tensor), actual[1]


def encoding_of(config: dict[str, Any]) -> RoPE:
    name, options = encoding_of_config(config)
    width = 2 * config.get("head_dim", config["hidden_size"] // 2)
    made = factory(name)(Sizes(width, 2, 64), **options)
    assert isinstance(made, RoPE)
    return made


def tables(encoding: RoPE, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    pos = torch.tensor([[0, 1, 7, length - 1]])
    layout = Layout(pos, torch.zeros_like(pos), causal=True)
    rotary = encoding.terms(torch.zeros(1, 4, encoding.sizes.width, dtype=dtype), layout).rotary_q
    assert rotary is not None
    assert rotary.pairing == "half"
    return rotary.cos[0, 0], rotary.sin[0, 0]


def test_there_is_a_checkpoint_of_each_rope_type(wide: ModuleType) -> None:
    assert {name.partition(",")[0] for name in CHECKPOINTS} == set(ENCODING_OF_TYPE)
    assert set(ENCODING_OF_TYPE) - {"default"} == set(wide.ROPE_INIT_FUNCTIONS)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_rotations_in_float64_are_those_of_transformers(name: str, wide: ModuleType) -> None:
    checkpoint = CHECKPOINTS[name]
    encoding = encoding_of(checkpoint.config)
    for length in checkpoint.lengths:
        omega, factor = theirs(wide, checkpoint.config, length)
        assert omega.dtype == torch.float64
        angle = torch.tensor([0, 1, 7, length - 1], dtype=torch.float64)[:, None] * omega
        got = tables(encoding, length, torch.float64)
        # an angle of size p rounds by p * 1e-16 a few times
        for one, other in zip(got, (angle.cos() * factor, angle.sin() * factor), strict=True):
            assert_close(one, other, rtol=0, atol=1e-12 * max(1.0, length / 1000))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_rotations_in_float32_are_those_of_transformers_up_to_its_rounding(name: str) -> None:
    rope = imported()
    checkpoint = CHECKPOINTS[name]
    encoding = encoding_of(checkpoint.config)
    for length in checkpoint.lengths:
        omega, factor = theirs(rope, checkpoint.config, length)
        assert omega.dtype == torch.float32
        angle = torch.tensor([0, 1, 7, length - 1])[:, None] * omega
        got = tables(encoding, length, torch.float32)
        # their frequencies are rounded three to eight times, ours once
        atol = 8 * F32 * torch.tensor([1, 2, 8, length])[:, None] * factor
        for one, other in zip(got, (angle.cos() * factor, angle.sin() * factor), strict=True):
            assert ((one - other).abs() <= atol).all()


def test_dimensions_next_to_each_other_rotate_in_models_that_have_it_so() -> None:
    gptj = {"model_type": "gptj", "rotary_dim": 64, "n_embd": 4096, "n_head": 16}
    assert encoding_of_config(gptj) == ("rope", {"theta": 10_000.0, "pairing": "interleaved", "rotary_dim": 64})
    assert encoding_of_config({**SIZE, "model_type": "cohere", "rope_theta": 5.0})[1]["pairing"] == "interleaved"
    assert encoding_of_config({**SIZE, "model_type": "llama", "rope_theta": 5.0})[1]["pairing"] == "half"


def test_the_text_of_a_model_of_several_kinds_is_read() -> None:
    text = {**SIZE, **scaled("linear", factor=2.0)}
    assert encoding_of_config({"model_type": "mistral3", "text_config": text}) == encoding_of_config(text)
    assert encoding_of_config({**SIZE, **old("su", short_factor=[1.0], long_factor=[1.0])})[0] == "longrope"


YARN = {"factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
MINISTRAL = {  # as of Ministral 3, with a shorter length
    **SIZE,
    "model_type": "ministral3",
    **scaled("yarn", 1e6, **YARN, original_max_position_embeddings=16, llama_4_scaling_beta=0.1),
}
LLAMA4 = {
    **SIZE,
    "model_type": "llama4_text",
    "num_hidden_layers": 8,
    "floor_scale": 16,
    "attn_scale": 0.2,
    **scaled("llama3", 5e5, factor=8.0, **BANDS),
}


def test_the_temperature_of_a_model_comes_with_its_rotations() -> None:
    name, options = encoding_of_config({"model_type": "mistral3", "text_config": MINISTRAL})
    rotation, temperature = options["parts"]
    assert (name, rotation["name"], rotation["factor"], rotation["original_length"]) == ("sum", "yarn", 16.0, 16)
    assert temperature == {"name": "temperature", "beta": 0.1, "original_length": 16, "first": 0}
    name, options = encoding_of_config({"model_type": "llama4", "text_config": LLAMA4})
    assert (name, options["layers"], options["parts"][0]["name"]) == ("interleave", [3, 1], "llama3")
    assert options["parts"][0]["pairing"] == "interleaved"
    assert options["parts"][1] == {"name": "temperature", "beta": 0.2, "original_length": 16, "first": 1}
    assert encoding_of_config({**LLAMA4, "attn_temperature_tuning": False})[1]["parts"][1] == {"name": "none"}


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ({"no_rope_layers": [1, 1, 0, 1, 1, 0]}, [2, 1]),
        ({"no_rope_layers": [0, 0, 1, 0, 0, 1, 0]}, [2, 1]),
        ({"no_rope_layers": None, "num_hidden_layers": 5}, [3, 1]),
        ({"no_rope_layer_interval": 2, "num_hidden_layers": 4}, [1, 1]),
    ],
)
def test_layers_without_rotations_alternate_with_others(given: dict[str, Any], layers: list[int]) -> None:
    name, options = encoding_of_config({**SIZE, "model_type": "smollm3", "rope_theta": 5.0, **given})
    assert (name, options["layers"]) == ("interleave", layers)
    rotates = [part["name"] == "rope" for part in options["parts"]]
    assert rotates == ([True, False] if (given.get("no_rope_layers") or [1])[0] else [False, True])
    assert encoding_of_config({**SIZE, "rope_theta": 5.0, "no_rope_layers": [1, 1]})[0] == "rope"


def test_attention_of_a_checkpoint_with_a_temperature_is_that_of_ministral_3(tmp_path: Path) -> None:
    """At 16 times the original length, where rotations and factors are not those of rope."""
    module = pytest.importorskip("transformers.models.ministral3.modeling_ministral3")
    config = module.Ministral3Config(
        **{**MINISTRAL, "hidden_size": 64, "head_dim": 32, "num_key_value_heads": 2, "num_hidden_layers": 1},
        attn_implementation="eager",
    )
    layer, pos = module.Ministral3Attention(config, 0).double(), torch.arange(250)[None]
    layout, h = Layout(pos, torch.zeros_like(pos), True), torch.randn(1, 250, 64, dtype=torch.float64)
    mask = torch.zeros(1, 1, 250, 250, dtype=torch.float64).masked_fill(~layout.allowed, -torch.inf)
    expected, _ = layer(h, module.Ministral3RotaryEmbedding(config)(h, pos), mask, pos)
    config.save_pretrained(tmp_path)
    terms = make_encoding("pe=from_checkpoint", f"pe.path={tmp_path}").terms(h, layout)
    projections = layer.q_proj, layer.k_proj, layer.v_proj
    q, k, v = (project(h).unflatten(-1, (2, 32)).transpose(1, 2) for project in projections)
    got = layer.o_proj(attend(q, k, v, terms, layout).transpose(1, 2).flatten(2))
    assert_close(got, expected, rtol=0, atol=250 * 8 * F32)


REFUSED = [
    ({"rope_theta": 1e4, "rope_scaling": {"type": "spiral"}}, r"rope_type must be one of default, linear, .* 'spiral'"),
    ({"model_type": "gpt2"}, r"one of rope_theta, rope_parameters, .* must be given, got none \(model_type=gpt2\)"),
    ({**old("linear")}, r"factor must be given for rope_type=linear, got none"),
    ({**old("linear", factor=2.0, odd=3)}, r"rope_type=linear must be among factor, .* got odd=3"),
    ({"rope_parameters": {"a": {"rope_type": "default"}, "b": {}}}, r"the same rotation, got one each for a, b"),
    ({"rope_theta": 1e6, "rope_local_base_freq": 1e4}, r"the same rotation, got one each for global and local"),
    ({"rope_theta": 1e4, "rotary_dim": "x"}, r"rotary_dim must be a number, got 'x'"),
    ({**SIZE, "hidden_size": "x", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, r"hidden_size must be a number"),
    ({**SIZE, **old("dynamic", factor=2.0), "max_position_embeddings": "x"}, r"max_position_embeddings must be a num"),
    ({"rope_theta": "much"}, r"rope_theta must be a number, got 'much'"),
    ({"rope_theta": 1e4, "rope_scaling": 3}, r"rope_parameters must be an object, got 3"),
    ({"rope_theta": 1e4, "partial_rotary_factor": 0.5}, r"head_dim must be given beside partial_rotary_factor=0.5"),
    ({"rope_theta": 1e4, "qk_rope_head_dim": 64}, r"got qk_rope_head_dim=64"),
    ({**old("yarn", factor=2.0)}, r"max_position_embeddings must be given for rope_type=yarn"),
    ({**old("llama3", factor=2.0), **SIZE}, r"high_freq_factor must be a number, got None"),
    ({**MINISTRAL, **scaled("yarn", **YARN, **ORIGINAL)}, r"llama_4_scaling_beta must be a number, got None"),
    ({**MINISTRAL, **scaled("yarn", **YARN, llama_4_scaling_beta=1)}, r"original_max_position_embeddings must be a n"),
    ({**MINISTRAL, "model_type": "mistral"}, r"rope_type=yarn must be among .* got llama_4_scaling_beta=0\.1"),
    ({**LLAMA4, "attn_scale": "x"}, r"attn_scale must be a number, got 'x'"),
    ({**LLAMA4, "no_rope_layer_interval": 0}, r"no_rope_layer_interval must be an integer of at least 1, got 0"),
    ({**LLAMA4, "no_rope_layers": 3}, r"no_rope_layers must be a list, got 3"),
    ({**LLAMA4, "no_rope_layers": [1, 0, 1, 1]}, r"must come in turns with others, got no_rope_layers=\[1, 0, 1, 1\]"),
    ({**LLAMA4, "no_rope_layers": [0, 0]}, r"must come in turns with others, got no_rope_layers=\[0, 0\]"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_what_no_encoding_has_is_refused_in_one_line(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    for refused in (lambda: encoding_of_config(config), lambda: read_encoding(str(tmp_path))):
        with pytest.raises(OptionError, match=message) as caught:
            refused()
        assert "\n" not in str(caught.value)


def test_a_path_without_a_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "text.json").write_text("{")
    for path, message in (
        (tmp_path, "path must be a folder with a config.json"),
        (tmp_path / "text.json", "path must have JSON"),
        (tmp_path / "list.json", "path must have an object"),
    ):
        with pytest.raises(OptionError, match=message):
            read_encoding(str(path))


def make_encoding(*overrides: str) -> PositionalEncoding:
    (cfg,) = expand_overrides(list(overrides), multirun=False)
    encoding = hydra.utils.instantiate(cfg.pe)(Sizes(64, 2, 16))
    assert isinstance(encoding, PositionalEncoding)
    return encoding


def test_a_checkpoint_is_chosen_on_the_command_line(tmp_path: Path) -> None:
    config = {**SIZE, **scaled("llama3", 500_000.0, factor=8.0, **BANDS)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    encoding: Any = make_encoding("pe=from_checkpoint", f"pe.path={tmp_path}")
    assert (encoding.name, encoding.theta, encoding.pairing) == ("llama3", 500_000.0, "half")
    assert (encoding.beta_fast, encoding.factor, encoding.original_length) == (4.0, 8.0, 8192)
    given: Any = make_encoding("pe=from_checkpoint", f"pe.path={tmp_path / 'config.json'}", "pe.factor=2.0")
    assert given.factor == 2.0
    longrope = scaled("longrope", factor=4.0, short_factor=[1.0] * 16, long_factor=[2.0] * 16, **ORIGINAL)
    (tmp_path / "config.json").write_text(json.dumps({**SIZE, **longrope}))
    assert make_encoding("pe=from_checkpoint", f"pe.path={tmp_path}").name == "longrope"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pe=from_checkpoint"], r"^pe=from_checkpoint needs pe\.path=DIR"),
        (["pe=from_checkpoint", "pe.path=nowhere"], r"^pe\.path must be a folder with a config\.json, got 'nowhere'"),
        (["pe=rope,from_checkpoint", "pe.path=."], r"^pe must be from_checkpoint alone"),
    ],
)
def test_a_checkpoint_on_the_command_line_needs_a_path(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand_overrides(words, multirun=False)


def test_llama3_is_yarn_without_its_factor() -> None:
    """Names and options are those of conf/pe."""
    options = {"factor": 8.0, "beta_fast": 4.0, "beta_slow": 1.0, "attention_factor": 1.0}
    encodings = [
        hydra.utils.instantiate(pe_settings("llama3"))(Sizes(64, 2, 128)),
        factory("yarn")(Sizes(64, 2, 128), **options),
        factory("llama3")(Sizes(64, 2, 128), factor=8.0),
    ]
    first, *others = (tables_of(encoding) for encoding in encodings)
    for other in others:
        assert torch.equal(first, other)


def tables_of(encoding: RoPE) -> Tensor:
    layout = Layout.of_lengths(torch.tensor([200]), 200, causal=True)
    rotary = encoding.terms(torch.zeros(1, 200, 64), layout).rotary_q
    assert rotary is not None
    return torch.stack((rotary.cos, rotary.sin))
