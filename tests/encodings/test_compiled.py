"""A model with an encoding is compiled in one graph and exported: no layout is read, and no number is complex."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from helpers.configs import slow_but_for
from pe_lab.attention import attend, reference
from pe_lab.encodings import PADDING, UNMARKED, Layout, Randomized, Rotary, Stack, make
from pe_lab.encodings.families.rotary_scaled import document_lengths
from pe_lab.encodings.layout import PROPERTY_NAMES
from pe_lab.encodings.named import encodings

NAMES = sorted(encodings())
DEEP = {"rnope_swa": 4}  # layers that an encoding needs
ON_GRID = [name for name in NAMES if getattr(encodings()[name], "on_grid", False)]
MARKED = [name for name in NAMES if getattr(encodings()[name], "reads_marks", False)]
# one for each place where a layout was read, or where PyTorch's compiler or exporter stopped
FEW = [
    "abacus",
    "alibi",
    "coupled",
    "cpe",
    "fire",
    "learnable",
    "normalized",
    "randomized_learnable",
    "rope",
    "rope_dynamic_ntk",
    "rse",
    "t5",
]
# without slow tests, each of FEW is compiled once: in training, or for a strict export
COMPILED = ["cpe", "rope_dynamic_ntk"]
STRICT = ["fire", "rope"]


ALL = slow_but_for(("alibi", "fire", "forgetting", "rope"))
D, H, T = 16, 2, 8
MAX_MARK = 5  # the largest mark
EQUAL = {"rtol": 0, "atol": 1e-5}
LENGTHS = torch.tensor([T, 5, 3])


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Model(nn.Module):
    """Attention with the encodings of a stack; a subclass says where the layout comes from."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack = stack
        self.layers = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(stack.depth))

    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        x, positions = self.stack(x, layout)
        for index, layer in enumerate(self.layers):
            h_qk, h_v, terms, of_layer = positions.layer(index, x)
            q, k, _ = layer(h_qk).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
            v = layer(h_v).unflatten(-1, (3, H, -1))[:, :, 2].transpose(1, 2)
            x = x + attend(q, k, v, terms, of_layer).transpose(1, 2).flatten(2)
        return x


class Marked(Model):
    """Takes the marks of the tokens of whole sequences."""

    def forward(self, x: Tensor, marks: Tensor) -> Tensor:
        return super().forward(x, replace(Layout.whole(*x.shape[:2], self.stack.first.sizes.causal), marks=marks))


class Padded(Model):
    """Takes the lengths of sequences that are padded on the right, and the marks of their tokens, if they have any."""

    def forward(self, x: Tensor, length: Tensor, marks: Tensor | None = None) -> Tensor:
        sizes = self.stack.first.sizes
        layout = Layout.of_lengths(length, x.shape[1], sizes.causal, sizes.grid_width)
        return super().forward(x, replace(layout, marks=marks))


def stack(name: str, length: int = T, causal: bool = True) -> Stack:
    torch.manual_seed(0)
    depth, grid = DEEP.get(name, 2), 4 if name in ON_GRID else None
    marks = MAX_MARK if name in MARKED else None
    made = make(name, width=D, num_heads=H, depth=depth, length=length, causal=causal, grid_width=grid, marks=marks)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    made.constrain()
    return made


def embeddings(batch: int = 3, length: int = T) -> Tensor:
    return torch.randn(batch, length, D, generator=torch.Generator().manual_seed(length))


def marks_of(name: str, length: int = T, seed: int = 0) -> tuple[Tensor, ...]:
    """The marks of tokens, where an encoding reads them; otherwise none."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(UNMARKED, MAX_MARK + 1, (3, length), generator=generator),) if name in MARKED else ()


def whole_model(name: str) -> Model:
    """A model of whole sequences."""
    return (Marked if name in MARKED else Model)(stack(name))


def seeded(model, *given) -> Tensor:
    torch.manual_seed(1)
    return model(*given)


def packed() -> Layout:
    """Two documents; one; one with padding on the left, at positions that no token has."""
    pos = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7], [9, 9, 0, 1, 2, 3, 4, 5]])
    return Layout(pos, torch.tensor([[0] * 4 + [1] * 4, [0] * 8, [PADDING] * 2 + [0] * 6]), causal=True)


def dynamic(batch: bool = False) -> dict[int, object]:
    length = {1: torch.export.Dim("T", min=4, max=64)}
    return {0: torch.export.Dim("B", min=2, max=64), **length} if batch else length


# -- the whole of a sequence -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_every_encoding_is_exported_for_any_length(name: str) -> None:
    """A program that was traced at 8 tokens equals the model at 12, beyond the training length too."""
    model, traced = whole_model(name), (embeddings(), *marks_of(name))
    shapes = (dynamic(),) * len(traced)
    program = torch.export.export(model, traced, dynamic_shapes=shapes, strict=False).module()
    for length in (T, 12):
        inputs = (embeddings(length=length), *marks_of(name, length, seed=1))
        assert_close(seeded(program, *inputs), seeded(model, *inputs), **EQUAL)


@pytest.mark.parametrize("name", slow_but_for(COMPILED))
def test_every_encoding_trains_compiled_in_one_graph(name: str) -> None:
    """The outputs, and the gradients of the input and of every parameter."""
    model, actual, marks = whole_model(name), [], marks_of(name)
    upstream = torch.randn(3, T, D)
    for run in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        x = embeddings().requires_grad_()
        out = seeded(run, x, *marks)
        leaves = [x, *(p for p in model.parameters() if p.requires_grad)]
        actual.append([out.detach(), *torch.autograd.grad(out, leaves, upstream, allow_unused=True)])
    for expected, got in zip(*actual, strict=True):
        assert (got is None) == (expected is None)
        if expected is not None:
            assert_close(got, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(expected.abs().max())))


@pytest.mark.parametrize("name", slow_but_for(STRICT))
@torch.no_grad()
def test_every_encoding_is_exported_strictly(name: str) -> None:
    model, inputs = whole_model(name), (embeddings(), *marks_of(name))
    program = torch.export.export(model, inputs, strict=True).module()
    assert_close(seeded(program, *inputs), seeded(model, *inputs), **EQUAL)


@torch.no_grad()
def test_a_batch_of_any_size_is_exported() -> None:
    for name in ("rope", "alibi"):
        model = Model(stack(name))
        program = torch.export.export(model, (embeddings(),), dynamic_shapes=(dynamic(batch=True),), strict=False)
        x = embeddings(batch=5, length=11)
        assert_close(program.module()(x), model(x), **EQUAL)


@torch.no_grad()
def test_a_compiled_model_takes_another_length() -> None:
    model = Model(stack("rope_dynamic_ntk"))
    run = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    for length in (T, 12, 5):
        x = embeddings(length=length)
        assert_close(run(x), model(x), **EQUAL)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@torch.no_grad()
def test_no_complex_numbers_are_exported(pairing: str) -> None:
    made = make("rope", width=D, num_heads=H, depth=1, length=T, pairing=pairing)
    program = torch.export.export(Model(made), (embeddings(),), strict=False)
    values = [node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    assert len(values) > 20
    assert not any(value.is_complex() for value in values)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rotation_without_complex_numbers_is_the_rotation(pairing: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, H, 6).to(dtype).transpose(1, 2)
    angle = torch.randn(2, 1, 5, 3, dtype=torch.promote_types(dtype, torch.float32))
    rotary = Rotary(angle.cos(), 1.5 * angle.sin(), pairing)
    expected, got = reference.rotate(x, rotary), reference._rotate_real(x.to(rotary.cos.dtype), rotary)
    assert got.dtype == expected.dtype
    assert_close(got, expected, rtol=0, atol=4 * torch.finfo(rotary.cos.dtype).eps)


# -- padding and documents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_padded_sequences_are_exported_with_their_lengths_as_an_input(name: str) -> None:
    """The program was traced with other lengths, and other marks."""
    model, x = Padded(stack(name)), embeddings()
    traced = (x, torch.tensor([2, 8, 7]), *marks_of(name))
    program, inputs = torch.export.export(model, traced, strict=False).module(), (x, LENGTHS, *marks_of(name, seed=1))
    is_token = torch.arange(T) < LENGTHS[:, None]
    assert_close(seeded(program, *inputs)[is_token], seeded(model, *inputs)[is_token], **EQUAL)


@torch.no_grad()
def test_bidirectional_attention_over_padded_sequences_is_exported() -> None:
    for name in ("alibi", "rope", "t5"):
        model, x = Padded(stack(name, causal=False)), embeddings()
        program = torch.export.export(model, (x, torch.tensor([2, 8, 7])), strict=False).module()
        is_token = torch.arange(T) < LENGTHS[:, None]
        assert_close(program(x, LENGTHS)[is_token], model(x, LENGTHS)[is_token], **EQUAL)


@pytest.mark.parametrize("name", ["alibi", "cpe", "fire", "forgetting", "learnable", "normalized", "rope_dynamic_ntk"])
@torch.no_grad()
def test_a_layout_that_was_read_is_compiled_in_one_graph(name: str) -> None:
    model, x = Model(stack(name)), embeddings()
    is_token = packed().segment != PADDING
    got = torch.compile(model, fullgraph=True, backend="eager")(x, packed().read())
    assert_close(got[is_token], model(x, packed())[is_token], **EQUAL)


def test_a_layout_that_is_not_known_is_refused_in_one_line() -> None:
    class Given(Model):
        def forward(self, x: Tensor, pos: Tensor, segment: Tensor) -> Tensor:
            return super().forward(x, Layout(pos, segment, causal=True))

    layout = packed()
    with pytest.raises(ValueError, match="max_distance of a layout must be known when a model is exported") as caught:
        torch.export.export(Given(stack("alibi")), (embeddings(), layout.pos, layout.segment), strict=False)
    assert "Layout.whole or Layout.of_lengths" in str(caught.value)


@pytest.mark.parametrize("which", ["is_exporting", "is_compiling"])
def test_lengths_of_documents_are_the_same_when_they_cannot_be_listed(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments with numbers in any order, at positions that do not start at 0."""
    segment = torch.tensor([[3, 3, 1, 1, 1, 2, PADDING, PADDING], [0] * 8])
    pos = torch.tensor([[4, 5, 0, 1, 7, 2, 0, 0], [0, 1, 2, 3, 4, 5, 6, 9]])
    expected = Layout(pos, segment, True).document_length, document_lengths(Layout(pos, segment, True))
    assert expected[1].tolist() == [[6, 6, 8, 8, 8, 3, 1, 1], [10] * 8]
    layout = Layout(pos, segment, True).read()
    monkeypatch.setattr(torch.compiler, which, lambda: True)
    assert torch.equal(layout.document_length, expected[0])
    assert torch.equal(document_lengths(layout), expected[1])


# -- facts that are known ----------------------------------------------------------------------------------------------


def facts(layout: Layout) -> dict[str, object]:
    return {name: getattr(layout, name) for name in (*PROPERTY_NAMES, "all_allowed")}


def unknown(layout: Layout) -> Layout:
    """The same layout, whose facts must be read."""
    keys = None if layout.keys is None else unknown(layout.keys)
    copied = replace(layout, pos=layout.pos.clone(), segment=layout.segment.clone(), keys=keys)
    assert copied.structure is None
    return copied


@pytest.mark.parametrize("grid_width", [None, 1, 4, 20])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 13])
def test_what_is_known_of_whole_sequences_is_what_would_be_read(length: int, grid_width: int | None) -> None:
    layout = Layout.whole(2, length, True, grid_width)
    expected = Layout.of_lengths(torch.full((2,), length), length, True, grid_width)
    assert torch.equal(layout.pos, expected.pos)
    assert torch.equal(layout.segment, expected.segment)
    assert (layout.pos.dtype, layout.segment.dtype) == (expected.pos.dtype, expected.segment.dtype)
    assert facts(layout) == facts(unknown(layout))


def test_facts_that_are_known_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout.whole(2, 7, True, device="meta")
    decoded = layout.following(1).after(layout)
    assert (layout.pos_range, layout.max_distance, layout.one_segment) == ((0, 6), 6, True)
    assert (decoded.pos_range, decoded.max_distance, decoded.all_allowed) == ((7, 7), 7, True)
    moved = Layout.whole(2, 7, True).to("meta")
    assert moved.structure is not None
    assert moved.structure.pos is moved.pos


@pytest.mark.parametrize("borders", [(0, 5, 6, 7), (0, 1, 4, 9), (3, 4, 9, 10)])
def test_layouts_of_parts_are_known_as_they_follow(borders: tuple[int, ...]) -> None:
    start, *_ = borders
    whole = Layout.whole(2, borders[1] - start, True, start=start)
    layout = whole.after(None)
    assert facts(layout) == facts(unknown(layout))
    for first, last in pairwise(borders[1:]):
        following = layout.of_keys.following(last - first)
        layout = following.after(layout.of_keys)
        assert layout.structure is not None
        assert layout.of_keys.structure is not None
        assert layout.pos.tolist() == [list(range(first, last))]
        assert layout.of_keys.pos.tolist() == [list(range(start, last))]
        assert facts(layout) == facts(unknown(layout))


def test_facts_of_sequences_that_do_not_follow_each_other_are_read() -> None:
    first = Layout.whole(1, 4, True)
    for later in (Layout.whole(1, 3, True), Layout.whole(1, 3, True, start=9)):
        layout = later.after(first)
        assert layout.of_keys.structure is None
        assert layout.of_keys.pos.tolist() == [[*range(4), *later.pos[0].tolist()]]
        assert facts(layout) == facts(unknown(layout))


def test_of_padded_sequences_bounds_are_known_to_a_compiler_only(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = torch.tensor([3, 5])
    layout = Layout.of_lengths(lengths, 9, True)
    assert facts(layout) == facts(unknown(layout))
    assert layout.max_distance == 4
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    bounds = Layout.of_lengths(lengths, 9, True)
    assert (bounds.pos_range, bounds.max_distance) == ((0, 8), 8)
    assert (bounds.packed, bounds.right_padded, bounds.one_segment, bounds.runs_on) == (False, True, False, True)


@pytest.mark.parametrize("change", ["pos", "segment"])
def test_what_is_known_is_dropped_with_the_positions_it_was_known_of(change: str) -> None:
    layout = Layout.whole(2, 7, True)
    tensor = getattr(layout, change)
    assert replace(layout, **{change: tensor + 1}).structure is None
    assert replace(layout, seed=3).structure is layout.structure


def test_positions_drawn_at_random_have_the_bounds_of_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = stack("randomized_alibi").first
    assert isinstance(encoding, Randomized)
    located = encoding.locate(replace(Layout.whole(2, T, True), seed=5))
    assert facts(located) == facts(unknown(located))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    located = encoding.locate(replace(Layout.whole(2, T, True), seed=5))
    assert (located.pos_range, located.max_distance, located.runs_on) == ((0, 2047), 2047, False)
