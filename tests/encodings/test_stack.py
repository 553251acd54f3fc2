"""An encoding is put into a model by `make` and a `Stack`; nothing else calls the hooks."""

import ast
import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import hydra
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import pe_lab
from helpers.configs import pe_settings
from pe_lab.attention import attend
from pe_lab.check.case import MAX_MARK, marked_layout
from pe_lab.config import config_folder
from pe_lab.data.base import Task
from pe_lab.encodings import Alibi, Layout, RoPE, Shaw, Sizes, Stack, make
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import PADDING
from pe_lab.encodings.named import encodings
from pe_lab.encodings.terms import Terms

NAMES = sorted(path.stem for path in (config_folder() / "pe").glob("*.yaml"))
SIZES = {"width": 16, "num_heads": 2, "depth": 3, "length": 8}
DEEP = SIZES | {"depth": 4}  # as many layers as any encoding needs


def options_of(made: partial) -> dict:
    """All options of an encoding with their values; those of a nested one too."""
    kind, given = made.func, dict(made.keywords)
    while isinstance(kind, partial):
        kind, given = kind.func, kind.keywords | given
    bound = {key: parameter.default for key, parameter in inspect.signature(kind).parameters.items()} | given
    actual = {"class": kind}
    return actual | {key: plain(value) for key, value in bound.items() if key not in ("sizes", "name")}


def plain(value: object) -> object:
    """An option with the options of the encodings in it in their place."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    if callable(value):
        return options_of(value if isinstance(value, partial) else partial(value))
    return value


def test_every_name_of_the_configuration_can_be_made_and_no_other() -> None:
    assert list(encodings()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_encoding_of_its_file(name: str) -> None:
    """Of the same class, with the same options."""
    of_file = hydra.utils.instantiate(pe_settings(name))
    assert options_of(partial(encodings()[name])) == options_of(of_file)
    stack = make(name, **DEEP, grid_width=4 if of_file.func.on_grid else None, marks=MAX_MARK)
    assert stack.first.name == name
    assert len(stack) == (4 if stack.first.per_layer else 1)


def test_options_are_given_by_name() -> None:
    stack = make("rope", **SIZES, theta=500.0)
    assert isinstance(stack.first, RoPE)
    assert stack.first.theta == 500
    assert stack.depth == 3


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("roep", {}, r"name='roep': did you mean rope\? name must be one of abacus, "),
        ("rope", {"thetta": 3}, "options of rope must be among theta, pairing, rotary_dim, got thetta"),
        ("rope", {"name": "mine"}, ""),
        ("kerple_log", {"theta": 3}, "options of kerple_log must be among none, got theta"),
        ("rope", {"theta": -1.0}, "theta must be a positive number, got -1.0"),
        ("rope_2d", {}, "rope_2d needs positions on a grid, these sequences have none: use rope"),
        ("cope", {"causal": False}, "cope is defined for causal attention only, this is bidirectional"),
        ("rope", {"depth": 0}, "depth must be an integer of at least 1, got 0"),
        ("rope", {"depth": 2.5}, "depth must be an integer of at least 1, got 2.5"),
        ("rope", {"depth": True}, "depth must be an integer of at least 1, got True"),
        ("rope", {"width": "16"}, "width must be an integer of at least 1, got '16'"),
        ("rope", {"num_heads": 0}, "num_heads must be an integer of at least 1, got 0"),
        ("rope", {"length": None}, "length must be an integer of at least 1, got None"),
        ("rope_2d", {"grid_width": 4.0}, "grid_width must be an integer of at least 1, got 4.0"),
        ("rope", {"causal": "no"}, "causal must be True or False, got 'no'"),
        ("randomized_rope", {"encoding": "rope"}, "encoding must be what makes an encoding from sizes, .* got 'rope'"),
        (["rope"], {}, r"name must be one of abacus, .*, got \['rope'\]"),
        (None, {}, "name must be one of abacus, .*, got None"),
        ("rope", {"width": 6}, "rope rotates pairs: head_dim must be even, got 3"),
        ("learnable", {"length": 600}, "max_len must be at least the length of the sequences, got max_len=512"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(name: str, options: dict, error: str) -> None:
    if not error:
        with pytest.raises(TypeError):
            make(name, **SIZES, **options)
        return
    with pytest.raises(ValueError, match=error) as caught:
        make(name, **(SIZES | options))
    assert "\n" not in str(caught.value)


def test_parameters_are_shared_between_layers_as_the_encoding_says() -> None:
    _, *others = make("deberta", **SIZES)
    assert len(others) == 2
    assert all(not hasattr(other, "table") for other in others)
    assert len(make("learnable", **SIZES)) == 1
    with pytest.raises(ValueError, match="3 layers need 3 encodings, got 1"):
        Stack([Shaw(Sizes(16, 2, 8))], 3)
    with pytest.raises(ValueError, match="3 layers need 1 encodings, got 2"):
        Stack([Alibi(Sizes(16, 2, 8)), Alibi(Sizes(16, 2, 8))], 3)


class Model(nn.Module):
    """Somebody's own model."""

    def __init__(self, encoding: Stack, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.encoding = encoding
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))

    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        x, positions = self.encoding(x, layout)
        for index, layer in enumerate(self.layers):
            h_qk, h_v, terms, of_layer = positions.layer(index, x)
            q, k, _ = layer(h_qk).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            v = layer(h_v).unflatten(-1, (3, 2, -1))[:, :, 2].transpose(1, 2)
            x = x + attend(q, k, v, terms, of_layer).transpose(1, 2).flatten(2)
        return x


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_trains_in_another_model(name: str) -> None:
    """Gradients reach every parameter that is trained, but those that start without effect."""
    grid = 4 if encodings()[name] in (encodings()[n] for n in NAMES if n.endswith("2d") or n == "rope_mixed") else None
    torch.manual_seed(0)
    stack = make(name, **DEEP, grid_width=grid, marks=MAX_MARK)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model = Model(stack, depth=stack.depth)
    layout = marked_layout(Layout.whole(2, 8, causal=True, grid_width=grid))
    model(torch.randn(2, 8, 16), layout).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in stack.parameters())
    if name not in ("integer",):
        assert all(p.grad.any() for p in stack.parameters())
    stack.constrain()


def test_the_default_layout_is_that_of_whole_sequences() -> None:
    model, x = Model(make("learnable", **SIZES)), torch.randn(2, 8, 16)
    whole = Layout.of_lengths(torch.tensor([8, 8]), 8, causal=True)
    assert torch.equal(model(x), model(x, whole))
    padded = Layout.of_lengths(torch.tensor([8, 5]), 8, causal=True)
    assert torch.equal(model(x)[0], model(x, padded)[0])
    assert_close(model(x)[1, :5], model(x, padded)[1, :5])
    assert padded.segment[1, 5] == PADDING


@pytest.mark.parametrize(
    ("x", "layout", "error"),
    [
        (torch.zeros(2, 8, 15), None, r"x must be \[B, T, D\] with T >= 1, D = 16, got \[2, 8, 15\]"),
        (torch.zeros(8, 16), None, r"x must be \[B, T, D\] with T >= 1, D = 16, got \[8, 16\]"),
        (torch.zeros(2, 0, 16), None, r"x must be \[B, T, D\] with T >= 1, D = 16, got \[2, 0, 16\]"),
        (
            torch.zeros(2, 8, 16),
            Layout.of_lengths(torch.tensor([7, 7]), 7, causal=True),
            r"layout must be that of x, \[B, T\] = \[2, 8\], got \[2, 7\]",
        ),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(x: Tensor, layout: Layout | None, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        make("rope", **SIZES)(x, layout)


def test_inputs_of_another_class_are_refused_by_name() -> None:
    stack = make("rope", **SIZES)
    with pytest.raises(TypeError, match=r"^x must be a Tensor \[B, T, D\], got list$"):
        stack([[0.0] * 16])
    with pytest.raises(TypeError, match=r"^length must be a Tensor \[B\] of integers, got list$"):
        Layout.of_lengths([7, 7], 7, causal=True)


class Shorter(PositionalEncoding):
    """Takes a token away."""

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        return x[:, 1:]


class Wider(PositionalEncoding):
    """Gives values more dimensions."""

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        return h, torch.cat((h, h), -1)


class Unpacked(PositionalEncoding):
    """Returns the input once: of two sequences, the first would be queries and keys, the second values."""

    def mix(self, h: Tensor, layout: Layout) -> Tensor:
        return h


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Shorter, r"^embed must return \[B, T, D\] = \[2, 8, 16\], got \[2, 7, 16\]$"),
        (Wider, r"^mix must return \[B, T, D\] = \[2, 8, 16\], got \[2, 8, 32\]$"),
        (Unpacked, r"^Unpacked\.mix must return two tensors, got Tensor$"),
    ],
)
def test_a_hook_that_returns_another_shape_is_refused(kind: type[PositionalEncoding], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Model(Stack([kind(Sizes(16, 2, 8))], 3))(torch.randn(2, 8, 16))


class MixesInPlace(PositionalEncoding):
    """Adds to its input."""

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        h += 1
        return h, h


class SharedTermsInPlace(PositionalEncoding):
    """Adds to the token embeddings where it makes the terms of all layers."""

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        h.add_(1)
        return Terms()


class TermsInPlace(SharedTermsInPlace):
    """Adds to the input of each layer."""

    reads_content = True


@pytest.mark.parametrize("kind", [MixesInPlace, SharedTermsInPlace, TermsInPlace])
def test_a_hook_that_writes_to_its_input_is_refused(kind: type[PositionalEncoding]) -> None:
    with pytest.raises(ValueError, match="^mix and terms must return new tensors, got h changed in place$"):
        Model(Stack([kind(Sizes(16, 2, 8))], 3))(torch.randn(2, 8, 16))


@torch.inference_mode()
def test_hooks_are_called_in_inference_mode() -> None:
    assert Model(make("rope", **SIZES))(torch.randn(2, 8, 16)).isfinite().all()


@pytest.mark.parametrize("name", ["rope", "shaw"])
@pytest.mark.parametrize("index", [-1, 3])
def test_a_layer_that_the_model_does_not_have_is_refused(name: str, index: int) -> None:
    h, positions = make(name, **SIZES)(torch.zeros(1, 8, 16))
    with pytest.raises(ValueError, match=rf"index must be that of a layer, 0 ... 2, got {index}"):
        positions.layer(index, h)


def test_terms_are_computed_once_where_layers_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for kind in (Alibi, Shaw):
        true = kind.terms
        monkeypatch.setattr(
            kind, "terms", lambda self, h, layout, true=true: (calls.append(self.name), true(self, h, layout))[1]
        )
    Model(make("alibi", **SIZES))(torch.randn(1, 8, 16))
    Model(make("shaw", **SIZES))(torch.randn(1, 8, 16))
    assert calls == ["alibi", "shaw", "shaw", "shaw"]


class Keeps(PositionalEncoding):
    """Keeps token embeddings and the input of each layer, under one name; its layers share it."""

    reads_content = True

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        self.seen = [layout.with_earlier("input", x)]
        return x

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        self.seen.append(layout.with_earlier("input", h))
        return Terms()


@torch.no_grad()
def test_each_layer_and_the_embedding_keep_what_is_theirs() -> None:
    encoding, x = Keeps(Sizes(16, 2, 8)), torch.randn(2, 6, 16)
    stack = Stack([encoding], 3)
    cache = stack.cache()
    for part in (x[:, :4], x[:, 4:5], x[:, 5:]):
        _, positions = stack(part, None, cache)
        for index in range(3):
            positions.layer(index, (index + 2) * part)
    assert [torch.equal(kept, factor * x) for kept, factor in zip(encoding.seen, range(1, 5), strict=True)] == [
        True
    ] * 4


def test_the_encodings_of_all_layers_are_constrained(monkeypatch: pytest.MonkeyPatch) -> None:
    constrained: list[nn.Module] = []
    monkeypatch.setattr(Shaw, "constrain", lambda self: constrained.append(self))
    stack = make("shaw", **SIZES)
    stack.constrain()
    assert constrained == list(stack)


@torch.no_grad()
def test_without_a_layout_a_grid_is_continued_row_by_row() -> None:
    for name in ("rope_2d", "cpe"):
        stack = make(name, **SIZES, grid_width=3)
        cache = stack.cache()
        pos = [stack(torch.zeros(1, count, 16), None, cache)[1].layout.pos[0] for count in (4, 1, 3)]
        assert torch.cat(pos).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]


def test_only_the_stack_and_encodings_call_the_hooks() -> None:
    """Every call of `.embed`, `.mix`, `.terms` and `.share_parameters` in the package but in what checks the hooks."""
    calls = []
    for path in Path(pe_lab.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr in ("embed", "mix", "terms", "share_parameters"):
                calls.append(path.relative_to(Path(pe_lab.__file__).parent).as_posix())
    assert {call for call in calls if not call.startswith(("encodings/", "check/"))} == set()
    assert {"encodings/stack.py", "encodings/families/randomized.py"} <= set(calls)


def test_a_model_of_the_lab_holds_a_stack() -> None:
    from pe_lab.config import Model as Settings
    from pe_lab.model import Transformer

    settings = Settings(2, 16, 2, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False)
    model = Transformer(settings, RoPE, Task(11, 8, 11, causal=True))
    assert isinstance(model.encodings, Stack)
    assert model.encodings.depth == 2
