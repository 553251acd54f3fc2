"""Rotations by three axes, against complex numbers pair by pair and the tables of transformers."""

import math
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.encodings import PADDING, Alibi, AxialRoPE, Layout, MRoPE, OptionError, RoPE, Sizes, make
from pe_lab.encodings.families.dape import Dape
from pe_lab.encodings.families.randomized import Randomized
from pe_lab.encodings.hf_config import encoding_of_config

B, H, d, T = 2, 2, 16, 9
D = H * d
SIZES = Sizes(D, H, T)
F32 = torch.finfo(torch.float32).eps
# text, an image of 2 x 2, text that follows its largest position; a second document; padding
POS = [[(0, 0, 0), (1, 1, 1), (2, 2, 2), (2, 2, 3), (2, 3, 2), (2, 3, 3), (4, 4, 4), (0, 0, 0), (7, 9, 40)]]
POS += [[(5, 0, 7), (5, 1, 7), (6, 1, 30), (6, 2, 0), (9, 9, 9), (10, 10, 10), (0, 0, 0), (0, 0, 0), (1, 2, 3)]]
SEGMENTS = [[0] * 7 + [1] * 2, [3] * 6 + [PADDING] * 2 + [4]]


def layout() -> Layout:
    return Layout(torch.tensor(POS), torch.tensor(SEGMENTS), True)


def axis_of(pair: int, sections: list[int], interleaved: bool) -> int:
    """Return which of time, row and column rotates a pair, as the two classes of transformers pick them."""
    if not interleaved:
        return next(axis for axis in range(3) if pair < sum(sections[: axis + 1]))
    return pair % 3 if pair % 3 and pair < 3 * sections[pair % 3] else 0


CASES = [([2, 3, 3], False), ([8, 0, 0], False), ([3, 3, 2], True), ([4, 2, 2], True)]


@pytest.mark.proves("mrope")
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(("sections", "interleaved"), CASES)
def test_mrope_rotates_a_pair_by_the_axis_of_its_section(sections: list[int], interleaved: bool, pairing: str) -> None:
    """Values and gradients."""
    encoding = MRoPE(SIZES, theta=50.0, pairing=pairing, sections=sections, interleaved=interleaved)
    q, k, v = (torch.randn(B, H, T, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    at = encoding.locate(layout())
    got = attend(q, k, v, encoding.terms(torch.zeros(B, T, D, dtype=torch.float64), at), at, "reference")

    def turned(x: Tensor) -> Tensor:
        rows = []
        for b in range(B):
            tokens = []
            for t in range(T):
                parts = [x[b, :, t, 0]] * d
                for c in range(d // 2):
                    angle = POS[b][t][axis_of(c, sections, interleaved)] * 50.0 ** (-2 * c / d)
                    m, n = (2 * c, 2 * c + 1) if pairing == "interleaved" else (c, c + d // 2)
                    parts[m] = x[b, :, t, m] * math.cos(angle) - x[b, :, t, n] * math.sin(angle)
                    parts[n] = x[b, :, t, m] * math.sin(angle) + x[b, :, t, n] * math.cos(angle)
                tokens.append(torch.stack(parts, -1))
            rows.append(torch.stack(tokens, 1))
        return torch.stack(rows)

    z = turned(q) @ turned(k).mT / math.sqrt(d)
    expected = z.masked_fill(~at.allowed, -torch.inf).softmax(-1) @ v
    assert_close(got, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, v), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=0, atol=1e-12)


@pytest.mark.proves("mrope", by="transformers")
@pytest.mark.parametrize(("sections", "interleaved"), CASES)
def test_mrope_has_the_tables_of_transformers(sections: list[int], interleaved: bool) -> None:
    """Those of Qwen2-VL and of Qwen3-VL, which are float32."""
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

    rope = {"rope_type": "default", "rope_theta": 50.0, "mrope_section": sections}
    config = SimpleNamespace(max_position_embeddings=64, rope_parameters=rope, head_dim=d)
    theirs = (Qwen3VLTextRotaryEmbedding if interleaved else Qwen2VLRotaryEmbedding)(config)
    cos, sin = theirs(torch.zeros(1, dtype=torch.float32), torch.tensor(POS).movedim(-1, 0))
    encoding = MRoPE(SIZES, theta=50.0, sections=sections, interleaved=interleaved)
    tables = encoding.rotation(torch.zeros(B, T, D), layout())
    for got, expected in ((tables.cos, cos), (tables.sin, sin)):  # theirs are there for both halves
        assert_close(got[:, 0].repeat(1, 1, 2), expected, rtol=0, atol=4 * 40 * F32)


@pytest.mark.parametrize("interleaved", [False, True])
def test_text_has_the_bits_of_rope(interleaved: bool) -> None:
    """On a line, and with three equal axes."""
    encoding, rope = MRoPE(SIZES, interleaved=interleaved), RoPE(SIZES, pairing="half")
    line = Layout(torch.tensor([[3, 4, 9, 700]]), torch.zeros(1, 4, dtype=torch.long), True)
    three = replace(line, pos=line.pos[..., None].expand(-1, -1, 3))
    expected = rope.rotation(torch.zeros(1, 4, D), line)
    for at in (line, three):
        got = encoding.rotation(torch.zeros(1, 4, D), encoding.locate(at))
        assert torch.equal(got.cos, expected.cos)
        assert torch.equal(got.sin, expected.sin)


@pytest.mark.proves("rope_2d", by="transformers")
@pytest.mark.parametrize(
    ("module", "kind"), [("qwen2_vl", "Qwen2VL"), ("qwen2_5_vl", "Qwen2_5_VL"), ("qwen3_vl", "Qwen3VL")]
)
def test_rope_2d_in_halves_is_the_vision_rope_of_qwen_vl(module: str, kind: str) -> None:
    """Queries turned by both, at the patches of an image of 4 x 6 in the order of Qwen-VL, blocks of 2 x 2."""
    from transformers.vision_utils import get_vision_position_ids

    theirs = import_module(f"transformers.models.{module}.modeling_{module}")
    config = SimpleNamespace(rope_parameters={"rope_type": "axial", "rope_theta": 10_000.0}, head_dim=d)
    pos = get_vision_position_ids(torch.tensor([[1, 4, 6]]), 2)
    N = len(pos)
    q = torch.randn(1, H, N, d)
    cos, sin = getattr(theirs, f"{kind}VisionRotaryEmbedding")(config)(q, pos)
    by_token = q[0].movedim(0, 1)
    expected, _ = theirs.apply_rotary_pos_emb_vision(by_token, by_token, cos, sin)
    encoding = AxialRoPE(Sizes(D, H, N, False, 6), theta=10_000.0, pairing="half")
    at = Layout(pos[None], torch.zeros(1, N, dtype=torch.long), False)
    tables = encoding.rotation(torch.zeros(1, N, D), encoding.locate(at))
    assert_close(
        reference.rotate(q, tables)[0].movedim(0, 1), expected, rtol=0, atol=4 * 6 * F32 * float(q.abs().max())
    )


@pytest.mark.proves("rope_2d", by="transformers")
@pytest.mark.parametrize(("rows", "columns"), [(4, 6), (7, 1), (16, 16)])
def test_rope_2d_in_unit_coordinates_is_the_rope_of_dinov3(rows: int, columns: int) -> None:
    """Tables of transformers for a picture, beside another picture and padding in the same sequence."""
    dinov3 = pytest.importorskip("transformers.models.dinov3_vit.modeling_dinov3_vit")
    config = dinov3.DINOv3ViTConfig(hidden_size=D, num_attention_heads=H, patch_size=2, rope_theta=100.0)
    theirs = dinov3.DINOv3ViTRopePositionEmbedding(config).eval().double()
    theirs.inv_freq = 100.0 ** -torch.arange(0, 1, 4 / d, dtype=torch.float64)  # theirs are float32
    cos, sin = theirs(torch.zeros(1, 3, 2 * rows, 2 * columns, dtype=torch.float64))
    picture = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    other = torch.cartesian_prod(torch.arange(3), torch.arange(5))
    pos = torch.cat((picture + 40, other, torch.full((2, 2), 99)))[None]
    segment = torch.tensor([[1] * len(picture) + [0] * len(other) + [PADDING] * 2])
    encoding = AxialRoPE(Sizes(D, H, 64, False, 6), pairing="half", coordinates="unit")
    tables = encoding.rotation(torch.zeros(1, pos.shape[1], D, dtype=torch.float64), Layout(pos, segment, False))
    # their coordinates are float32
    angle = 2 * math.pi * torch.finfo(torch.float32).eps
    for ours, expected in ((tables.cos, cos), (tables.sin, sin)):
        assert_close(ours[0, 0, : len(picture)].repeat(1, 2), expected, rtol=0, atol=2 * angle)


def test_unit_coordinates_need_the_whole_picture() -> None:
    with pytest.raises(OptionError, match="^coordinates of rope_2d must be index with causal attention, got unit$"):
        AxialRoPE(Sizes(D, H, 64, True, 6), coordinates="unit")


@torch.no_grad()
def test_decoded_with_a_cache_it_equals_the_whole_sequence() -> None:
    """An image and the text after it, which follows the largest position by itself."""
    stack = make("mrope", width=D, num_heads=H, depth=1, length=T)
    whole = layout().rows(torch.tensor([0])).part(0, 7)
    x = torch.randn(1, 7, D, dtype=torch.float64)

    def run(x: Tensor, at: Layout | None, cache: object = None) -> Tensor:
        x, positions = stack(x, at, cache)
        h, _, terms, layer_layout = positions.layer(0, x)
        q = h.unflatten(2, (H, d)).transpose(1, 2)
        return attend(q, q.flip(-1), q, terms, layer_layout)

    cache = stack.cache()
    parts = [run(x[:, :6], whole.part(0, 6), cache), run(x[:, 6:], None, cache)]
    assert cache.layout.pos[0].tolist() == [list(one) for one in POS[0][:7]]
    assert_close(torch.cat(parts, 2), run(x, whole), rtol=0, atol=1e-13)


def test_a_shift_moves_all_three_axes_and_no_logit() -> None:
    encoding, at = MRoPE(SIZES), layout()
    moved = at.shifted(1_000)
    assert torch.equal(moved.pos, at.pos + 1_000)
    h, (q, k) = torch.zeros(B, T, D, dtype=torch.float64), torch.randn(2, B, H, T, d, dtype=torch.float64)
    got, expected = (reference.logits(q, k, encoding.terms(h, one), one) for one in (moved, at))
    assert_close(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("given", "interleaved"),
    [
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, False),
        ({"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True}, True),
    ],
)
def test_a_checkpoint_with_sections_has_mrope(given: dict, interleaved: bool) -> None:
    """Qwen2-VL and Qwen3-VL, whose text model is nested."""
    config = {"text_config": {"rope_theta": 1e6, "rope_scaling": given, "head_dim": 128}}
    expected = {"theta": 1e6, "pairing": "half", "sections": given["mrope_section"], "interleaved": interleaved}
    assert encoding_of_config(config) == ("mrope", expected)


def test_other_encodings_refuse_three_axes_and_mrope_refuses_four() -> None:
    with pytest.raises(ValueError, match=r"^alibi takes positions \[B, T\], or \[B, T, 2\] on a grid, got \[2, 9, 3\]"):
        Alibi(SIZES).locate(layout())
    four = replace(layout(), pos=torch.zeros(B, T, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"^mrope takes positions .*, or \[B, T, 3\] of time, row and column, got"):
        MRoPE(SIZES).locate(four)


def test_dape_and_randomized_take_the_three_axes_of_mrope() -> None:
    at, h = layout(), torch.randn(B, T, D, generator=torch.Generator().manual_seed(0))
    made = [Dape(SIZES, "dape", MRoPE), Randomized(SIZES, "randomized", MRoPE, max_len=64)]
    for encoding in made:
        located = encoding.locate(at)
        rotary, expected = encoding.terms(h, located).rotary_q, MRoPE(SIZES).terms(h, located).rotary_q
        assert rotary is not None
        assert expected is not None
        assert torch.equal(rotary.cos, expected.cos)
        assert torch.equal(rotary.sin, expected.sin)
    drawn = made[1].draw(at.pos_range[1] + 1, seed=3)
    assert torch.equal(made[1].locate(replace(at, seed=3)).pos, drawn[at.pos])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sections": [2, 3, 4]}, r"^sections must be pairs .* add up to 8, the rotated pairs, got \[2, 3, 4\], .* 9$"),
        ({"sections": [4, 4]}, "^sections must be pairs of time, row, column"),
        ({"sections": [2, 3, 3], "rotary_dim": 8}, "^sections must be pairs .* add up to 4"),
        ({"sections": [9, -1, 0]}, "^sections must be a list of "),
        ({"sections": [2, 3, 3], "interleaved": True}, "^sections of row and column must have at most 3 and 2 pairs"),
    ],
)
def test_sections_that_do_not_fit_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MRoPE(SIZES, **options)
