"""What attention is given fits the queries, or is refused in one line before anything is computed."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pe_lab.attention import IMPLEMENTATIONS, attend, blocked, flex, sdpa, triton
from pe_lab.attention.dropout import Dropout
from pe_lab.attention.shapes import BY_SEQUENCE, ROTARY_SHAPES, TERM_SHAPES, check_inputs, fields_without
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.terms import PairTerm, Rotary, Terms

B, H, T, d = 2, 3, 5, 4
e = d  # dimensions of values
SIZES = {
    "B": B,
    "H": H,
    "T": T,
    "d": d,
    "<=d/2": d // 2,
    "e": e,
    "<=e/2": e // 2,
    "B|1": B,
    "H|1": H,
    "2R+1": 2 * T - 1,
}
NAMES = [*IMPLEMENTATIONS, "auto"]
Given = dict[str, object]  # what differs from Terms() for queries, keys, values and a layout that fit
Make = Callable[[Tensor], Given]
SEGMENT = torch.zeros(B, T, dtype=torch.long)


def rotary(tensor: Tensor, part: str, side: str) -> Given:
    """A rotation whose other part fits."""
    parts = {"cos": torch.ones(B, H, T, d // 2), "sin": torch.zeros(B, H, T, d // 2)} | {part: tensor}
    return {"terms": Terms(**{f"rotary_{side}": Rotary(**parts)})}


def term(name: str) -> Make:
    return lambda tensor: {"terms": Terms(**{name: tensor})}


def layout_of(pos: Tensor, segment: Tensor = SEGMENT) -> Layout:
    whole = Layout.of_lengths(torch.full((len(segment),), T), T, causal=True)
    object.__setattr__(whole, "segment", segment)
    object.__setattr__(whole, "pos", pos)
    return whole


INPUTS: dict[str, tuple[str, Make]] = {  # the shape that each must have, and how it is given
    "k": ("B, H, T, d", lambda tensor: {"k": tensor}),
    "v": ("B, H, T, e", lambda tensor: {"v": tensor}),
    **{
        f"rotary_{side}.{part}": (
            f"B|1, H|1, T, <={'d' if side in 'qk' else 'e'}/2",
            lambda tensor, part=part, side=side: rotary(tensor, part, side),
        )
        for side, part in product(("q", "k", "v", "out"), ("cos", "sin"))
    },
    **{
        name: (shape, term(name))
        for name, shape in {
            "gain": "H|1, d",
            "distance_bias": "H|1, 2R+1",
            "logit_factors": "H|1, 2R+1",
            "decay": "B|1, H|1, T",
            "pair_bias": "B|1, H|1, T, T",
            "weight_factors": "H|1, 2R+1",
            "relative_values": "H|1, 2R+1, e",
        }.items()
    },
    "layout.pos": ("B|1, T", lambda tensor: {"layout": layout_of(tensor.long())}),
    "layout.segment": ("B|1, T", lambda tensor: {"layout": layout_of(torch.arange(T)[None], tensor.long())}),
    "dropout.seed": ("", lambda tensor: {"dropout": Dropout(0.5, tensor.long())}),
}


def letters(name: str) -> list[str]:
    return [letter for letter in INPUTS[name][0].split(", ") if letter]


def right(name: str) -> tuple[int, ...]:
    return tuple(SIZES[letter] for letter in letters(name))


def wrong(name: str) -> Iterator[tuple[int, ...]]:
    """Shapes that are not right in one thing: a size that is larger or one, a dimension too many or too few."""
    shape = right(name)
    yield (1, 1, *shape) if name in BY_SEQUENCE else (1, *shape)
    if shape:
        yield shape[1:]
    for axis, letter in enumerate(letters(name)):
        if (name, letter) == ("v", "e"):
            continue  # values may have any number of dimensions
        smaller = {shape[axis] - 1} if letter == "2R+1" else set() if letter[0] == "<" else {1}
        sizes = {shape[axis] + 1} | smaller
        for size in sizes - ({1} if "|1" in letter else set()):
            yield (*shape[:axis], size, *shape[axis + 1 :])


def run(implementation: str = "auto", **given: object) -> Tensor:
    """Attention of queries that are [B, H, T, d] unless others are given."""
    shape = (B, H, T, d)
    defaults = {
        **{name: torch.randn(shape) for name in "qkv"},
        "terms": Terms(),
        "layout": Layout.of_lengths(torch.full((B,), T), T, causal=True),
        "dropout": None,
    }
    return attend(**defaults | given, implementation=implementation)


def test_every_tensor_of_the_terms_has_a_shape() -> None:
    optional = (Tensor | None, Tensor | PairTerm | None)
    tensors = {name for name, annotation in Terms.__annotations__.items() if annotation in optional}
    assert tensors == TERM_SHAPES.keys()
    assert tensors <= INPUTS.keys()


@pytest.mark.covering
@pytest.mark.parametrize("implementation", NAMES)
@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name in INPUTS for shape in wrong(name)])
def test_a_shape_that_does_not_fit_is_refused(name: str, shape: tuple[int, ...], implementation: str) -> None:
    """And named, with what it must be and what it is."""
    if name == "layout.pos" and shape == (1, *right(name)):
        shape = (1, *shape)  # three dimensions are positions on a grid
    required = f"{name} must be [{INPUTS[name][0]}] for q [B, H, T, d] = {[B, H, T, d]}, got {list(shape)}"
    required += "; entry R + i - j is for token i and key j" * ("2R+1" in INPUTS[name][0])
    with pytest.raises(ValueError, match=f"^{re.escape(required)}$"):
        run(implementation, **INPUTS[name][1](torch.zeros(shape)))


ONES = [
    (name, shape)
    for name in INPUTS
    if not name.endswith(".sin")  # the other part of a rotation has the shape of this one
    for shape in product(*((SIZES[letter], 1) if "|1" in letter else (SIZES[letter],) for letter in letters(name)))
    if shape != right(name) or name in BY_SEQUENCE
]
ONES += [(name, (first, *shape)) for name, shape in ONES if name in BY_SEQUENCE for first in (B, 1)]


@pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning")  # of the interpreter
@pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")
@pytest.mark.parametrize(("name", "shape"), ONES)
def test_a_size_of_one_stands_for_all_in_every_implementation(name: str, shape: tuple[int, ...]) -> None:
    """Compared with the same numbers written out; float32, sums of some ten numbers of size 10."""
    if name in ("layout.pos", "layout.segment"):
        tensor = torch.arange(T).expand(shape) if name == "layout.pos" else (torch.arange(T) // 3).expand(shape)
    else:
        tensor = torch.randn(shape)
    written_out = tensor.expand(right(name) if len(shape) == len(right(name)) else (B, *right(name)))
    if name.startswith("rotary"):
        cos, sin = ((x, x.cos()) for x in (tensor, written_out))
        short, full = ({"terms": Terms(**{name.split(".")[0]: Rotary(*pair)})} for pair in (cos, sin))
    else:
        short, full = (INPUTS[name][1](x) for x in (tensor, written_out))
    inputs = dict(zip("qkv", torch.randn(3, B, H, T, d), strict=True))
    expected = run("reference", **inputs | full)
    for implementation, module in IMPLEMENTATIONS.items():
        given = inputs | short
        terms, layout = given.get("terms", Terms()), given.get("layout", layout_of(torch.arange(T)[None]))
        if not module.refusal_reason(inputs["q"], terms, layout, given.get("dropout")):
            assert_close(run(implementation, **given), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("implementation", NAMES)
def test_fewer_queries_than_keys_are_refused(implementation: str) -> None:
    """As in cached decoding: one new token against all; whatever layout comes with them."""
    says = re.escape(f"k must be [B, H, T, d] for q [B, H, T, d] = {[B, H, 1, d]}, got {[B, H, T, d]}")
    for length in (1, T):
        layout = Layout.of_lengths(torch.full((B,), length), length, causal=True)
        with pytest.raises(ValueError, match=f"^{says}$"):
            run(implementation, q=torch.randn(B, H, 1, d), layout=layout)


@pytest.mark.parametrize("implementation", NAMES)
@pytest.mark.parametrize("q", [torch.zeros(H, T, d), torch.zeros(B, H, T, d).long(), torch.zeros(1, B, H, T, d)])
def test_queries_are_four_dimensional_and_floating_point(q: Tensor, implementation: str) -> None:
    name = str(q.dtype).removeprefix("torch.")
    says = re.escape(f"q must be floating point [B, H, T, d], got {name} {list(q.shape)}")
    with pytest.raises(ValueError, match=f"^{says}$"):
        run(implementation, q=q, k=q, v=q)


@pytest.mark.parametrize(("name", "kind"), [("q", "Tensor"), ("v", "Tensor"), ("terms", "Terms"), ("layout", "Layout")])
def test_an_input_of_another_class_is_refused_by_name(name: str, kind: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be a {kind}, got list$"):
        run(**{name: []})


def test_a_rotation_has_as_many_sines_as_cosines() -> None:
    pair = Rotary(torch.ones(1, H, T, d // 2), torch.ones(1, 1, T, d // 2))
    for name in ROTARY_SHAPES:
        says = re.escape(f"{name}.sin must be {[1, H, T, d // 2]} as its cos, got {[1, 1, T, d // 2]}")
        with pytest.raises(ValueError, match=f"^{says}$"):
            run(terms=Terms(**{name: pair}))


def test_pairs_that_are_rotated_fit_into_a_head() -> None:
    q = torch.randn(B, H, T, 7)
    for pairs in (1, 3):
        run(q=q, k=q, v=q, terms=Terms(rotary_q=Rotary(torch.ones(1, 1, T, pairs), torch.ones(1, 1, T, pairs))))
    four = Rotary(torch.ones(1, 1, T, 4), torch.ones(1, 1, T, 4))
    with pytest.raises(ValueError, match=re.escape("rotary_q.cos must be [B|1, H|1, T, <=d/2] for q")):
        run(q=q, k=q, v=q, terms=Terms(rotary_q=four))


@pytest.mark.parametrize(
    ("name", "dtype", "says"),
    [
        ("k", torch.bfloat16, "float32"),
        ("v", torch.float64, "float32"),
        ("rotary_q.cos", torch.bfloat16, "float32 or float64"),
        ("rotary_k.sin", torch.float64, "float32"),
        *((name, torch.int64, "float64 or float32 or bfloat16 or float16") for name in TERM_SHAPES),
    ],
)
def test_a_dtype_that_does_not_fit_is_refused(name: str, dtype: torch.dtype, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be {says}, got {str(dtype).removeprefix('torch.')}$"):
        run(**INPUTS[name][1](torch.ones(right(name), dtype=dtype)))


@pytest.mark.parametrize("name", INPUTS)
def test_everything_is_on_the_device_of_the_queries(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be on cpu as q is, got meta$"):
        run(**INPUTS[name][1](torch.ones(right(name), device="meta")))


@pytest.mark.parametrize("name", ["distance_bias", "logit_factors", "weight_factors", "relative_values"])
def test_tables_of_distances_take_no_grid(name: str) -> None:
    """A distance is one number; terms that read none take any positions."""
    grid = Layout.of_lengths(torch.full((B,), T), T, causal=True, grid_width=3)
    says = re.escape(f"layout.pos must be [B|1, T] for q [B, H, T, d] = {[B, H, T, d]}, got {[1, T, 2]}")
    with pytest.raises(ValueError, match=f"^{says}$"):
        run(terms=Terms(**{name: torch.zeros(right(name))}), layout=grid)
    assert run(terms=Terms(gain=torch.ones(1, d)), layout=grid).isfinite().all()


class Broadcast(nn.Module):
    """A score that is the same for all queries."""

    def forward(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        return z[..., :1, :]


def test_a_content_bias_is_given_for_every_pair() -> None:
    says = re.escape(f"content_bias must return [B, H, T, T] = {[B, H, T, T]}, got {[B, H, 1, T]}")
    with pytest.raises(ValueError, match=f"^{says}$"):
        run(terms=Terms(content_bias=Broadcast()))


def test_no_number_is_read() -> None:
    """Tensors without any pass: on a GPU, nothing is waited for."""
    given = {name: torch.empty(right(name), device="meta") for name in TERM_SHAPES}
    pair = Rotary(*torch.empty(2, B, 1, T, d // 2, device="meta"))
    q = torch.empty(B, H, T, d, device="meta")
    layout = Layout.of_lengths(torch.empty(B, dtype=torch.long, device="meta"), T, causal=False)
    seed = torch.empty((), dtype=torch.long, device="meta")
    check_inputs(q, q, q, Terms(**dict.fromkeys(ROTARY_SHAPES, pair), **given), layout, Dropout(0.1, seed))


@dataclass(frozen=True)
class Later(Terms):
    """Terms with a field that was added later."""

    later: Tensor | None = None


@pytest.mark.parametrize("module", [sdpa, flex, triton], ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_field_that_is_added_later_is_refused_until_it_is_taken(module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNSUPPORTED_TERMS", fields_without(module.SUPPORTED_TERMS, Later))
    q, layout = torch.zeros(1, 1, 2, 16), Layout.whole(1, 2, True)
    assert "no place for later" in module.refusal_reason(q, Later(later=torch.zeros(1)), layout)
    assert "later" not in (module.refusal_reason(q, Later(), layout) or "")


def test_the_fused_path_of_blocks_leaves_a_field_that_is_added_later_to_the_definition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocked, "UNSUPPORTED_TERMS", fields_without(blocked.FUSED_TERMS, Later))
    q, layout = torch.zeros(1, 1, 2, 16), Layout.whole(1, 2, True)
    assert blocked._is_plain(q, Later(), layout)
    assert not blocked._is_plain(q, Later(later=torch.zeros(1)), layout)
