"""Norms, MLPs, grouped queries, norms of queries and keys, tied embeddings: each against its definition in float64."""

import weakref

import hydra
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.configs import NAMES, pe_class, pe_settings, slow_but_for
from pe_lab import config
from pe_lab.check.case import MAX_MARK, marked_layout
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.model import Transformer

WIDTH, HEADS, DEPTH, VOCABULARY, T = 24, 4, 2, 13, 9
ENOUGH = 4  # layers for every encoding
LENGTHS = (9, 5, 1)
TODAY = {
    "norm_type": "rms",
    "mlp": "swiglu",
    "mlp_ratio": "8/3",
    "num_kv_heads": 2,
    "qk_norm": True,
    "bias": False,
    "tie_embeddings": True,
}
CASES = {name: {name: value} for name, value in TODAY.items()} | {
    "one_kv_head": {"num_kv_heads": 1},
    "wide_heads": {"head_dim": 10, "num_kv_heads": 2},
    "narrow_heads": {"head_dim": 4, "num_heads": 5},
    "relu2": {"mlp": "relu2"},
    "rms_plain": {"norm_type": "rms_plain", "qk_norm": True},
    "embedding_norm": {"embedding_norm": True},
    "logit_cap": {"logit_cap": 1.5},
    "sandwich": {"norm": "sandwich"},
    "sandwich_rms_without_biases": {"norm": "sandwich", "norm_type": "rms", "bias": False},
    "post_rms": {"norm": "post", "norm_type": "rms"},
    "today": TODAY,
}
QWEN3_600M = ("model.depth=28", "model.width=1024", "model.num_heads=16", "model.num_kv_heads=8")
NANOCHAT_D20 = ("model.depth=20", "model.width=1280", "model.num_heads=10")
EQUAL = {"rtol": 0, "atol": 1e-11}


def sizes(**changes: object) -> Model:
    model_settings = {"depth": DEPTH, "width": WIDTH, "num_heads": HEADS, "mlp_ratio": 3, "norm": "pre", "dropout": 0.0}
    return Model(**model_settings | {"embedding_std": 1.0, "scale_tokens": False} | changes)


def made(model: Model, encoding=PositionalEncoding, task: Task | None = None) -> Transformer:
    transformer = Transformer(model, encoding, task or Task(VOCABULARY, T, VOCABULARY, causal=True))
    initialise_parameters(transformer, 0)
    return transformer


class Halved(PositionalEncoding):
    """Values are made of half the states, so that they are projected apart from queries and keys."""

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        return h, h / 2


def by_definition(weights: dict[str, Tensor], model: Model, tokens: Tensor, factor: float) -> Tensor:
    """Logits [T, V] of one sequence, one head at a time, from the equations of each part."""

    def linear(x: Tensor, name: str) -> Tensor:
        out = x @ weights[f"{name}.weight"].T
        return out + weights[f"{name}.bias"] if model.bias else out

    def rms(x: Tensor, name: str) -> Tensor:
        gain = 1.0 if model.norm_type == "rms_plain" else weights[f"{name}.weight"]
        return x / ((x * x).mean(-1, keepdim=True) + 1e-5).sqrt() * gain

    def norm(x: Tensor, name: str) -> Tensor:
        if model.norm_type != "layer":
            return rms(x, name)
        apart = x - x.mean(-1, keepdim=True)
        out = apart / ((apart * apart).mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]
        return out + weights[f"{name}.bias"] if model.bias else out

    def attention(h: Tensor, name: str) -> Tensor:
        heads_in_all = model.num_heads
        d, groups = model.head_dim or WIDTH // heads_in_all, model.num_kv_heads or heads_in_all
        states, values = linear(h, f"{name}.qkv"), linear(h * factor, f"{name}.qkv")
        heads = []
        for head in range(heads_in_all):
            shared = head // (heads_in_all // groups)
            q = states[:, head * d :][:, :d]
            k = states[:, (heads_in_all + shared) * d :][:, :d]
            v = values[:, (heads_in_all + groups + shared) * d :][:, :d]
            if model.qk_norm:
                q, k = rms(q, f"{name}.norm_query"), rms(k, f"{name}.norm_key")
            logits = q @ k.T / d**0.5 + torch.full((len(q), len(q)), -torch.inf, dtype=q.dtype).triu(1)
            heads.append(F.softmax(logits, -1) @ v)
        return linear(torch.cat(heads, -1), f"{name}.out")

    def mlp(h: Tensor, name: str) -> Tensor:
        if model.mlp == "swiglu":
            gate = linear(h, f"{name}.gate")
            return linear(gate / (1 + (-gate).exp()) * linear(h, f"{name}.up"), f"{name}.down")
        inner = linear(h, f"{name}.0")
        if model.mlp == "relu2":
            return linear(inner.clamp(min=0) ** 2, f"{name}.2")
        return linear(inner * 0.5 * (1 + torch.erf(inner / 2**0.5)), f"{name}.2")

    x = weights["tokens.weight"][tokens]
    x = norm(x, "norm_tokens") if model.embedding_norm else x
    for index in range(DEPTH):
        for part, role in ((attention, "attention"), (mlp, "mlp")):
            name, its_norm = f"layers.{index}.{role}", f"layers.{index}.norm_{role}"
            if model.norm == "post":
                x = norm(x + part(x, name), its_norm)
            elif model.norm == "pre":
                x = x + part(norm(x, its_norm), name)
            else:
                x = x + norm(part(norm(x, its_norm), name), f"{its_norm}_out")
    x = x if model.norm == "post" else norm(x, "norm")
    logits = x @ weights["tokens.weight"].T if model.tie_embeddings else linear(x, "head")
    return logits if model.logit_cap is None else model.logit_cap * (logits / model.logit_cap).tanh()


@pytest.mark.parametrize(("encoding", "factor"), [(PositionalEncoding, 1.0), (Halved, 0.5)])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_definition(case: str, encoding: type, factor: float) -> None:
    settings = sizes(**CASES[case])
    model = made(settings, encoding).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    tokens, layout = torch.randint(VOCABULARY, (len(LENGTHS), T)), Layout.of_lengths(torch.tensor(LENGTHS), T, True)
    weights = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    expected = torch.cat(
        [by_definition(weights, settings, row[:length], factor) for row, length in zip(tokens, LENGTHS, strict=True)]
    )
    logits = model(tokens, layout)[layout.segment != PADDING]
    torch.testing.assert_close(logits, expected, **EQUAL)
    upstream = torch.randn_like(logits)
    logits.backward(upstream)
    expected.backward(upstream)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.grad, weights[name].grad, rtol=0, atol=1e-10, msg=name)


def test_queries_and_keys_have_a_norm_each() -> None:
    """Without a rotation between them their weights are exchangeable, so that logits do not tell."""
    attention = made(sizes(qk_norm=True)).layers[0].attention
    torch.nn.init.constant_(attention.norm_query.weight, 2.0)
    torch.nn.init.constant_(attention.norm_key.weight, 3.0)
    h = torch.randn(2, T, WIDTH)
    q, k, _ = attention.project(h, h)
    for x, size in ((q, 2.0), (k, 3.0)):
        torch.testing.assert_close(x.square().mean(-1).sqrt(), torch.full(x.shape[:-1], size), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_trains_and_answers_in_a_model_of_today(name: str) -> None:
    """Without padding and after the last layer's keys only what is asked for is computed: with the same logits."""
    settings = sizes(**TODAY | {"width": 48, "depth": ENOUGH, "norm": "sandwich", "head_dim": 16})  # not 48 / 4
    grid_width = 3 if pe_class(name).on_grid else None
    task = Task(VOCABULARY, T, VOCABULARY, causal=True, grid_width=grid_width, marks=MAX_MARK)
    model = made(settings, hydra.utils.instantiate(pe_settings(name)), task)
    layout = marked_layout(Layout.of_lengths(torch.tensor(LENGTHS), T, True, grid_width))
    tokens = torch.randint(VOCABULARY, (len(LENGTHS), T))
    slot = (layout.segment != PADDING).flatten().nonzero()[:, 0]
    model.eval()
    with torch.random.fork_rng():
        logits = model(tokens, layout).flatten(0, 1)[slot]
    torch.testing.assert_close(model.answers(tokens, layout, slot), logits, rtol=1e-4, atol=1e-4)
    model.train()
    model.answers(tokens, layout, slot).square().sum().backward()
    reached = {name: value.grad for name, value in model.named_parameters() if not name.startswith("encodings.")}
    assert all(gradient is not None and gradient.isfinite().all() and gradient.any() for gradient in reached.values())


@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "learnable"])
def test_a_cache_gives_the_tokens_that_are_generated_without_one(name: str) -> None:
    model = made(sizes(**TODAY), hydra.utils.instantiate(pe_settings(name)))
    prompts = torch.randint(VOCABULARY, (3, 4))
    assert torch.equal(model.generate(prompts, 5, cached=True), model.generate(prompts, 5, cached=False))


def test_the_last_maps_of_a_layer_start_smaller_the_deeper_the_model() -> None:
    usual, scaled = (made(sizes(depth=8, residual_scale=kind)).state_dict() for kind in ("none", "depth"))
    for name, value in usual.items():
        last = name.endswith(("attention.out.weight", "mlp.2.weight"))
        assert torch.equal(scaled[name], value * 0.25 if last else value), name


@pytest.mark.parametrize(("mlp", "tied"), [("gelu", True), ("swiglu", False)])
def test_linear_maps_start_normal_with_a_weight_std_and_all_else_as_without(mlp: str, tied: bool) -> None:
    usual, normal = (
        made(
            sizes(depth=8, width=64, mlp=mlp, tie_embeddings=tied, residual_scale="depth", weight_std=std)
        ).state_dict()
        for std in (None, 0.02)
    )
    maps = [name for name in usual if ".attention." in name or ".mlp." in name or name.startswith("head.")]
    assert len(maps) > 8 * 4
    for name, value in normal.items():
        if name not in maps or (tied and name.startswith("head.") and name.endswith("weight")):
            assert torch.equal(value, usual[name]), name
        elif name.endswith("bias"):
            assert not value.any(), name
        else:
            last = name.endswith(("attention.out.weight", "mlp.2.weight", "mlp.down.weight"))
            assert value.std() == pytest.approx(0.02 * (0.25 if last else 1), rel=0.1), name


@pytest.mark.parametrize(
    ("preset", "pe", "vocabulary", "length", "parameters"),
    [
        ("gpt2_small", ("pe=learnable", "pe.max_len=1024"), 50_257, 1024, 124_439_808),
        ("llama_15m", ("pe=rope",), 32_000, 256, 15_191_712),
        ("qwen3_tiny", ("pe=rope", *QWEN3_600M), 151_936, 256, 596_049_920),
        ("nanochat_d4", ("pe=rope", *NANOCHAT_D20), 65_536, 256, 560_988_160),
        # no published model has these sizes: counted by hand
        ("qwen3_tiny", ("pe=rope",), 151_936, 256, 42_831_104),
        ("nanochat_d4", ("pe=rope",), 65_536, 256, 36_700_160),
    ],
)
def test_a_preset_has_as_many_parameters_as_its_source(preset, pe, vocabulary, length, parameters) -> None:
    (cfg,) = config.expand_overrides([f"model={preset}", *pe, "data=clm"], multirun=False)
    with torch.device("meta"):
        model = Transformer(cfg.model, hydra.utils.instantiate(cfg.pe), Task(vocabulary, length, vocabulary, True))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["model.num_kv_heads=3"], ["model.num_kv_heads=3", "model.num_heads=4"]),
        (["model.num_kv_heads=0"], ["model.num_kv_heads", "0"]),
        (["model.mlp_ratio=8/3"], ["model.mlp_ratio", "8/3", "64"]),
        (["model.mlp_ratio=2.5"], ["model.mlp_ratio", "2.5"]),
        (["model.head_dim=0"], ["model.head_dim", "0"]),
        (["model.head_dim=8", "model.parametrization=mup"], ["model.head_dim", "mup", "8"]),
        (["model.num_heads=5"], ["model.width=64", "model.num_heads=5", "model.head_dim"]),
        (["model.logit_cap=0"], ["model.logit_cap", "0"]),
        (["model.checkpointing=some"], ["model.checkpointing", "layer", "some"]),
        (["model.mlp=relu"], ["model.mlp", "gelu", "relu"]),
        (["model.norm_type=batch"], ["model.norm_type", "rms", "batch"]),
        (["model.tie_embeddings=true", "model.parametrization=mup"], ["model.tie_embeddings", "mup"]),
    ],
)
def test_parts_that_do_not_fit_are_refused(overrides: list[str], named: list[str]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        config.expand_overrides(overrides, multirun=False)
    assert all(word in str(error.value) for word in named)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("task", [Task(13, T, 5, causal=True), Task(13, T, 13, causal=False, pooled=True)])
def test_tied_embeddings_need_a_task_whose_answers_are_its_tokens(task: Task) -> None:
    with pytest.raises(ValueError, match=r"^model\.tie_embeddings needs"):
        made(sizes(tie_embeddings=True), task=task)


@pytest.mark.parametrize("name", slow_but_for())
def test_gradients_have_the_same_bits_with_layers_that_are_computed_again(name: str) -> None:
    """With dropout too, and where the layers of an encoding share terms or parameters."""
    grid_width = 3 if pe_class(name).on_grid else None
    task = Task(VOCABULARY, T, VOCABULARY, causal=True, grid_width=grid_width, marks=MAX_MARK)
    layout = marked_layout(Layout.of_lengths(torch.tensor(LENGTHS), T, True, grid_width))
    tokens = torch.randint(VOCABULARY, (len(LENGTHS), T))
    slot = (layout.segment != PADDING).flatten().nonzero()[:, 0]
    results = []
    for checkpointing in ("none", "layer", "selective"):
        settings = sizes(width=32, depth=ENOUGH, dropout=0.1, attention_dropout=0.1, checkpointing=checkpointing)
        model = made(settings, hydra.utils.instantiate(pe_settings(name)), task)
        model.encodings.advance(0.0)
        torch.manual_seed(0)
        model.answers(tokens, layout, slot).square().sum().backward()
        results.append({key: value.grad for key, value in model.named_parameters()})
    for key, gradient in results[0].items():
        for again in results[1:]:
            assert (gradient is None) == (again[key] is None), key
            assert gradient is None or torch.equal(gradient, again[key]), key


class Allocated(TorchDispatchMode):
    """Counts the bytes of all tensors that are made, and the most that there were at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is None or storage._cdata in self.seen:
                continue
            self.seen.add(storage._cdata)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        return made

    def _freed(self, storage: int, size: int) -> None:
        self.seen.discard(storage)
        self.now -= size


@pytest.mark.long
def test_layers_that_are_computed_again_need_a_quarter_of_the_memory_at_depth_64() -> None:
    most = {}
    for checkpointing in ("none", "selective", "layer"):
        model = made(sizes(depth=64, checkpointing=checkpointing), hydra.utils.instantiate(pe_settings("rope")))
        tokens = torch.randint(VOCABULARY, (32, 64))
        layout = model.task.layout(torch.full((32,), 64), 64)
        with Allocated() as allocated:
            model.answers(tokens, layout, torch.arange(32 * 64)).square().sum().backward()
        most[checkpointing] = allocated.most
    assert most["layer"] <= most["none"] / 4
    assert most["layer"] < most["selective"] <= 0.7 * most["none"]
