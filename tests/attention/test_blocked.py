"""Attention in blocks of queries equals the definition, for all terms and all encodings."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from hydra.utils import get_class
from torch import Tensor
from torch.testing import assert_close

from attention.test_attend import SEGMENTS, SUPPORTED, B, H, T, d, layout_of, linear_bias, rand
from pe_lab.attention import Dropout, attend, blocked, choose, sdpa
from pe_lab.encodings import Alibi, Fire, Tupe, layout_properties
from pe_lab.encodings import terms as terms_module
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.memory import Carried
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Stick, Terms

BLOCKS = (B * H * T * 10, B * H * T * 25)  # logits of a block: sizes that do not divide T = 63


class Products(torch.nn.Module):
    """A score with a parameter, of queries, keys and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(rand(d, d))

    def forward(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        return (q @ self.weight @ k.mT).sin() * z.cos() + 0.1 * layout.distance[:, None]


OTHERS: dict[str, Callable[[], Terms]] = {
    "window": lambda: Terms(window=(5,)),
    "windows": lambda: Terms(window=(5, None), distance_bias=linear_bias(), decay=rand(B, H, T)),
    "logit_factors": lambda: Terms(logit_factors=rand(H, 2 * T - 1), distance_bias=rand(1, 9), clip=True),
    "relative_values": lambda: Terms(relative_values=rand(H, 9, d), clip=True),
    "values_by_sequence": lambda: Terms(relative_values=rand(B, 1, 2 * T - 1, d)),
    "weight_factors": lambda: Terms(weight_factors=rand(1, 2 * T - 1), distance_bias=rand(B, 1, 2 * T - 1)),
    "content_bias": lambda: Terms(content_bias=Products()),
    "nearest": lambda: Terms(normalizer=Stick(), distance_bias=linear_bias()),
    "own": lambda: Terms(normalizer=Stick(remainder="own")),
    "first": lambda: Terms(normalizer=Stick("first", include_self=True), window=(30,)),
}
ALL = SUPPORTED | OTHERS


def gradients(terms: Terms, layout: Layout, implementation: str, dropout: Dropout | None = None) -> list[Tensor]:
    """Return the output and the gradients of queries, keys, values and all that the terms hold."""
    torch.manual_seed(1)
    tables = [x for x in vars(terms).values() if isinstance(x, Tensor)]
    parameters = list(terms.content_bias.parameters()) if isinstance(terms.content_bias, torch.nn.Module) else []
    leaves = [*(rand(B, H, T, d) for _ in range(3)), *tables, *parameters]
    for leaf in leaves:
        leaf.requires_grad_()
    is_token = (layout.segment != PADDING)[:, None, :, None]
    out = attend(*leaves[:3], terms, layout, implementation, dropout) * is_token
    return [out, *torch.autograd.grad(out, leaves, rand(B, H, T, d))]


@pytest.fixture(params=BLOCKS)
def in_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "MAX_BLOCK_LOGITS", request.param)


@pytest.mark.covering
@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize(("segments", "causal"), [*product(SEGMENTS, (True, False))])
@pytest.mark.parametrize("case", ALL)
def test_blocks_equal_the_definition(case: str, segments: str, causal: bool) -> None:
    torch.manual_seed(0)
    terms, layout = ALL[case](), layout_of(SEGMENTS[segments], causal)
    for got, expected in zip(*(gradients(terms, layout, name) for name in ("blocked", "reference")), strict=True):
        assert_close(got, expected, rtol=0, atol=1e-11)
        assert expected.any()


@pytest.mark.usefixtures("in_blocks")
def test_blocks_drop_the_weights_of_the_definition() -> None:
    dropout, layout = Dropout(0.3, torch.tensor(5)), layout_of(SEGMENTS["packed"], causal=True)
    for got, expected in zip(
        *(gradients(Terms(distance_bias=linear_bias()), layout, name, dropout) for name in ("blocked", "reference")),
        strict=True,
    ):
        assert_close(got, expected, rtol=0, atol=1e-11)


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("case", ["linear_bias", "several", "content_bias", "own"])
def test_queries_behind_earlier_keys_are_the_last_of_the_whole(case: str) -> None:
    """Also for a term that is there for these queries alone."""
    layout = layout_of(SEGMENTS["packed"], causal=True)
    later, terms = layout.last(40), ALL[case]()
    later = replace(later, keys=layout)
    q, k, v = rand(3, B, H, T, d)
    expected = attend(q, k, v, replace(terms, rotary_q=None, rotary_k=None), layout, "reference")[:, :, -40:]
    if terms.pair_bias is not None:
        terms = replace(terms, pair_bias=terms.pair_bias[:, :, -40:])
    actual = attend(q[:, :, -40:], k, v, replace(terms, rotary_q=None, rotary_k=None), later, "blocked")
    assert_close(actual, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("parts", [("fire",), ("tupe",), ("fire", "tupe"), ("fire", "alibi")])
@pytest.mark.parametrize("combination", ["sum", "heads"])
def test_a_term_of_pairs_is_computed_for_some_queries_at_a_time(
    parts: tuple[str, ...], combination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long sequences: no T x T numbers in the terms, and the same attention."""
    scales = {"tupe": "scale of logits"}
    if combination == "heads" and len({part in scales for part in parts}) > 1:
        pytest.skip("these heads do not stand side by side")
    make = get_class(f"pe_lab.encodings.{combination.title()}")
    sizes = Sizes(H * d * len(parts), H * len(parts), 20)
    classes = {"fire": Fire, "tupe": partial(Tupe, max_len=T), "alibi": Alibi}
    encoding = make(sizes, parts=[classes[part] for part in parts]).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.copy_(torch.randn_like(parameter))
    layout = encoding.locate(layout_of(SEGMENTS["packed"], causal=True))
    q, k, v = (rand(B, sizes.num_heads, T, d).requires_grad_() for _ in range(3))
    h, upstream = rand(B, T, sizes.width), rand(B, sizes.num_heads, T, d)
    results = []
    for long, name in ((T, "reference"), (T - 1, "reference"), (T - 1, "blocked")):
        monkeypatch.setattr(terms_module, "LONG_SEQUENCE", long)
        terms = encoding.terms(h, layout)
        assert isinstance(terms.pair_bias, Tensor) == (long == T)
        with blocked.limit_block_size(B * sizes.num_heads * T * 10):
            out = attend(q, k, v, terms, layout, name)
        leaves = [q, k, v, *(p for p in encoding.parameters() if p.requires_grad)]
        results.append([out, *torch.autograd.grad(out, leaves, upstream, allow_unused=True)])
    for other in results[1:]:
        for got, expected in zip(other, results[0], strict=True):
            assert (got is None) == (expected is None)
            if got is not None:
                assert_close(got, expected, rtol=0, atol=1e-10)


def test_auto_takes_blocks_of_long_sequences_that_would_need_a_number_for_every_pair() -> None:
    def taken(length: int, terms: Terms, causal: bool = True) -> str:
        q = torch.zeros(1, 1, 1, d).expand(1, H, length, d)
        return choose("auto", q, terms, Layout.whole(1, length, causal)).name

    for name, case in ALL.items():
        terms, pairs = case(), name not in ("nothing", "rotary", "rotary_half", "gain_and_scale")
        short = (
            "reference"
            if sdpa.refusal_reason(torch.zeros(1, H, T, d), terms, layout_of(SEGMENTS["whole"], True))
            else "sdpa"
        )
        assert taken(layout_properties.LONG_SEQUENCE, terms) == short
        assert taken(layout_properties.LONG_SEQUENCE + 1, terms) == ("blocked" if pairs else "sdpa")
        assert taken(layout_properties.LONG_SEQUENCE + 1, terms, causal=False) == ("blocked" if pairs else "sdpa")
    for length, name in (
        (layout_properties.LONG_SEQUENCE, "sdpa"),
        (layout_properties.LONG_SEQUENCE + 1, "blocked"),
    ):  # wider values have no fused kernel
        assert taken(length, Terms(carried=Carried(torch.zeros(1, 1, length, 2)))) == name
