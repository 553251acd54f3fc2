"""A check finds every broken promise: for each there is an encoding that breaks it."""

from functools import partial

import pytest
import torch
from torch import nn

from pe_lab.check import encodings, models
from pe_lab.check.case import B, EncodingCase, T, whole_layout
from pe_lab.check.promise import (
    BrokenError,
    InapplicableError,
    check_promise,
    check_promises,
    largest_difference,
    refusal_message,
)
from pe_lab.encodings.base import PositionalEncoding, UnfitError
from pe_lab.encodings.layout import PADDING
from pe_lab.encodings.terms import Rotary, Terms

PROMISES = encodings.PROMISES | models.PROMISES


class Sound(PositionalEncoding):
    """Adds -exp(s_h) |i - j| to the logits; keeps every promise."""

    def __init__(self, sizes, name="sound"):
        super().__init__(sizes, name)
        self.slope = nn.Parameter(torch.zeros(sizes.num_heads, 1))

    def reset_parameters(self):
        nn.init.zeros_(self.slope)

    def distances(self, h, layout, dtype=torch.float32):
        return torch.arange(-layout.max_distance, layout.max_distance + 1).abs().to(dtype)

    def terms(self, h, layout):
        return Terms(distance_bias=-0.1 * self.slope.exp() * self.distances(h, layout))


class Renamed(Sound):
    def __init__(self, sizes, name="renamed"):
        super().__init__(sizes, "other")


class Unrevised(Sound):
    revision = "1"


class NotNeutral(Sound):
    neutral = {"rate": 1.0}

    def __init__(self, sizes, name="not_neutral", rate=2.0):
        super().__init__(sizes, name)


class AdvancesInSecret(Sound):
    def advance(self, done):
        self.done = done


class Anneals(Sound):
    """Divides its bias by a temperature that falls in training, a number of Python."""

    phased = True

    def __init__(self, sizes, name="anneals"):
        super().__init__(sizes, name)
        self.temperature = 2.0

    def advance(self, done):
        self.temperature = 2.0 - done

    def terms(self, h, layout):
        return Terms(distance_bias=super().terms(h, layout).distance_bias / self.temperature)


class Replaces(Anneals):
    """Has its temperature in a buffer, a new one for each step."""

    def __init__(self, sizes, name="replaces"):
        super().__init__(sizes, name)
        del self.temperature
        self.register_buffer("temperature", torch.tensor(2.0))

    def advance(self, done):
        self.temperature = torch.tensor(2.0 - done)


class MisspeltScale(Sound):
    start_scale = "stdd"

    def __init__(self, sizes, name="misspelt_scale", std=1.0):
        super().__init__(sizes, name)


class NoSuchMatrix(Sound):
    matrices = ("slopes",)


class MatrixIsNoParameter(Sound):
    matrices = ("table",)

    def __init__(self, sizes, name="matrix_is_no_parameter"):
        super().__init__(sizes, name)
        self.register_buffer("table", torch.zeros(2, 2))


class StartsInReset(Sound):
    """Has its initial values from reset_parameters alone: the constructor leaves memory as it is."""

    def __init__(self, sizes, name="starts_in_reset"):
        super().__init__(sizes, name)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(float("nan"))


class NeverDrawn(Sound):
    def reset_parameters(self):
        pass


class DrawnAnew(Sound):
    def reset_parameters(self):
        fresh = torch.Generator()
        fresh.seed()
        nn.init.normal_(self.slope, generator=fresh)


class FixedDtype(Sound):
    def embed(self, x, layout):
        return x.float()


class OneSlot(Sound):
    def mix(self, h, layout):
        return h, h[:, :1]


class Cast(Sound):
    """Follows a cast as any other module does."""

    def _apply(self, fn, recurse=True):
        return nn.Module._apply(self, fn, recurse)


class InFloat32(Sound):
    """Rotates by angles in float32."""

    def terms(self, h, layout):
        omega = 10.0 ** -torch.arange(self.sizes.head_dim // 2)
        angle = layout.pos[:, None, :, None].to(h.dtype) * omega
        rotary = Rotary(angle.cos(), angle.sin())
        return Terms(distance_bias=super().terms(h, layout).distance_bias, rotary_q=rotary, rotary_k=rotary)


class ReadsInSecret(Sound):
    def terms(self, h, layout):
        return Terms(scale=1.0, distance_bias=h.float().mean() * self.slope.exp() * self.distances(h, layout))


class LowPrecisionTerms(Sound):
    def terms(self, h, layout):
        return Terms(distance_bias=-0.1 * self.slope.exp() * self.distances(h, layout, h.dtype).float())


class Product(Sound):
    """Forms its bias by a matrix product, which autocast computes in bfloat16."""

    def terms(self, h, layout):
        return Terms(distance_bias=-0.1 * self.slope.exp() @ self.distances(h, layout)[None])


class HalfTerms(Sound):
    def terms(self, h, layout):
        return Terms(distance_bias=super().terms(h, layout).distance_bias.bfloat16())


class Vectors(Sound):
    """Adds 0.3 sin(p / 10) times a fixed vector, which a norm does not remove."""

    absolute = True

    def vectors(self, x, layout):
        dtype = torch.promote_types(x.dtype, torch.float32)
        return 0.3 * torch.sin(layout.pos.to(dtype) / 10)[..., None]

    def embed(self, x, layout):
        return x + (self.vectors(x, layout) * torch.linspace(-1, 1, self.sizes.width, dtype=torch.float32)).to(x.dtype)


class UndeclaredVectors(Vectors):
    absolute = False


class DeclaredDistances(Sound):
    absolute = True


class LowPrecisionVectors(Vectors):
    def vectors(self, x, layout):
        return 0.3 * torch.sin(layout.pos.to(x.dtype) / 10)[..., None]


class Rounded(Vectors):
    """Rotates by positions in bfloat16, and adds nothing else."""

    def embed(self, x, layout):
        return x

    def terms(self, h, layout):
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
        angle = layout.pos.to(dtype).float()[:, None, :, None].expand(-1, -1, -1, self.sizes.head_dim // 2)
        return Terms(
            distance_bias=super().terms(h, layout).distance_bias[:, :1] * 0,
            clip=True,
            rotary_q=Rotary(angle.cos(), angle.sin()),
        )


class SecretPositions(Vectors):
    reads_positions = False


class GlobalDraws(Sound):
    def embed(self, x, layout):
        return x + 0.1 * torch.randn_like(x)


class DrawsInSecret(Sound):
    """Adds noise in training, from the seed of the layout."""

    def embed(self, x, layout):
        if not self.training:
            return x
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(layout.seed or 0))
        return x + 0.1 * noise.to(x.dtype)


class MovesInSecret(Vectors):
    """Shifts all positions by a random number, and does not declare draws_positions."""

    def locate(self, layout):
        return layout.shifted(int(torch.randint(1000, (), generator=torch.Generator().manual_seed(layout.seed or 0))))


class TakesAll(Sound):
    causal_only = True

    def _require_nature(self, causal, grid):
        pass


class RefusesLate(Sound):
    causal_only = True

    def locate(self, layout):
        return layout


class Clamps(Sound):
    def terms(self, h, layout):
        self.slope.data.clamp_(-0.01, 0.01)
        return super().terms(h, layout)


class OutOfRange(Sound):
    def constrain(self):
        self.slope.data.clamp_(-0.01, 0.01)


class Detached(Sound):
    def terms(self, h, layout):
        return Terms(distance_bias=-0.1 * self.slope.detach().exp() * self.distances(h, layout))


class DeadGradient(Sound):
    def terms(self, h, layout):
        return Terms(distance_bias=-0.1 * (self.slope.detach().exp() + 0 * self.slope) * self.distances(h, layout))


class RootAtZero(Sound):
    def terms(self, h, layout):
        return Terms(distance_bias=-0.1 * (self.slope.exp() * self.distances(h, layout) ** 2).sqrt())


class ByIndex(Vectors):
    def vectors(self, x, layout):
        return 0.3 * torch.sin(torch.arange(x.shape[1]) / 10)[None, :, None]


class ByBatch(Vectors):
    """Divides positions by the length of the batch."""

    def vectors(self, x, layout):
        return super().vectors(x, layout) / x.shape[1]


class ByLongest(Vectors):
    """Divides positions beyond the training length by the longest sequence of the batch."""

    def vectors(self, x, layout):
        return super().vectors(x, layout) / max(1, (layout.pos_range[1] + 1) / self.sizes.length)


class BySequence(Vectors):
    """Divides positions by the number of tokens in the sequence, packed documents taken together."""

    def vectors(self, x, layout):
        return super().vectors(x, layout) / (layout.segment != PADDING).sum(1)[:, None, None]


class ByNeighbour(Sound):
    """Adds the token before each, of the same document, where it is the last one before it."""

    def embed(self, x, layout):
        before = layout.segment.roll(1, 1)
        before[:, 0] = PADDING
        return x + x.roll(1, 1) * (layout.segment == before)[..., None]


class Oracle(Sound):
    def embed(self, x, layout):
        return x + x.roll(-1, 1)


class Mean(Sound):
    def embed(self, x, layout):
        return x + x.mean(1, keepdim=True)


class Mute(Sound):
    def embed(self, x, layout):
        return torch.zeros_like(x)


class Table(Vectors):
    def vectors(self, x, layout):
        return torch.linspace(0, 1, 20)[layout.pos.clamp(min=0)][..., None]


class LinesOfText(Vectors):
    def vectors(self, x, layout):
        if layout.pos_range[1] > 20:
            raise ValueError("too\nfar")
        return super().vectors(x, layout)


class Overflows(Vectors):
    def vectors(self, x, layout):
        return super().vectors(x, layout) * (layout.pos // 5_000)[..., None].log().clamp(min=0) * torch.inf


class RowsOnly(Sound):
    def locate(self, layout):
        if layout.pos.dim() == 3:
            return type(layout)(layout.pos[..., 0], layout.segment, layout.causal)
        return layout


class Stateful(Sound):
    """Has a larger slope in every call."""

    calls = 0

    def terms(self, h, layout):
        Stateful.calls += 1
        return Terms(distance_bias=-0.1 * Stateful.calls * self.slope.exp() * self.distances(h, layout))


class ByPlace(Sound):
    """Has a score by the places of queries and keys among those that it is called with."""

    def terms(self, h, layout):
        return Terms(content_bias=self)

    def forward(self, q, k, z, layout):
        query, key = (torch.arange(size, device=z.device, dtype=z.dtype) for size in (q.shape[2], k.shape[2]))
        return (-0.1 * self.slope.exp().mean() * (query[:, None] - key).abs()).expand_as(z)


class ByEnd(Sound):
    """Adds less, the later the last token is."""

    def terms(self, h, layout):
        return Terms(distance_bias=super().terms(h, layout).distance_bias / (1 + layout.pos_range[1]))


class Forgets(Sound):
    """Sums gates from the first token, and keeps none for those that come later."""

    causal_only = reads_content = True

    def terms(self, h, layout):
        gates = -h.square().mean(-1)[:, None].expand(-1, self.sizes.num_heads, -1)
        return Terms(decay=gates.masked_fill(layout.segment[:, None] == PADDING, 0).cumsum(-1))


BROKEN: list[tuple[type[PositionalEncoding], str, str]] = [
    (Renamed, "it keeps the name it is given", "got 'other': pass it to super"),
    (Unrevised, "it declares a revision, and neutral values that are defaults", "got '1'"),
    (NotNeutral, "it declares a revision, and neutral values that are defaults", "rate=1.0, and the default is 2.0"),
    (AdvancesInSecret, "where it overrides advance, it declares phased", "AdvancesInSecret overrides advance"),
    (Anneals, "what advance changes are parameters or buffers, in place", "buffers alone, differ by"),
    (Replaces, "what advance changes are parameters or buffers, in place", "makes a new tensor 0.temperature"),
    (MisspeltScale, "start_scale and matrices name what it has", "one of the options (std), got 'stdd'"),
    (NoSuchMatrix, "start_scale and matrices name what it has", "matrices has 'slopes'"),
    (MatrixIsNoParameter, "start_scale and matrices name what it has", "matrices has 'table'"),
    (NeverDrawn, "reset_parameters draws every parameter, from the seed alone", "slope is not drawn"),
    (DrawnAnew, "reset_parameters draws every parameter, from the seed alone", "slope, drawn twice, differ by"),
    (FixedDtype, "embed and mix keep shape and dtype", "embed makes torch.float32 of torch.bfloat16"),
    (OneSlot, "embed and mix keep shape and dtype", "mix for values makes (3, 1, 16) of (3, 9, 16)"),
    (
        ReadsInSecret,
        "terms depend on the tokens only if that is declared",
        "without reads_content: distance_bias differ by",
    ),
    (
        LowPrecisionTerms,
        "terms are formed in float32, also under autocast",
        "terms in bfloat16: distance_bias differ by",
    ),
    (
        Product,
        "terms are formed in float32, also under autocast",
        "terms under autocast: distance_bias: (2, 799) bfloat16",
    ),
    (HalfTerms, "terms are formed in float32, also under autocast", "distance_bias must be float32"),
    (LowPrecisionVectors, "what is added to tokens is formed in float32", "for embeddings in bfloat16 differ by"),
    (Rounded, "positions beyond 256 stay distinct in bfloat16", "259 and 260 look alike"),
    (SecretPositions, "positions beyond 256 stay distinct in bfloat16", "the class declares reads_positions=False"),
    (GlobalDraws, "random draws follow from the layout's seed alone", "torch's global generator is drawn from"),
    (DrawsInSecret, "random draws of training are declared", "neither draws_positions nor draws_each_pass"),
    (MovesInSecret, "random draws of training are declared", "neither draws_positions nor draws_each_pass"),
    (
        Cast,
        "cast to low precision, it keeps its numbers in float32",
        "(2, 1) bfloat16 in place of (2, 1) float32",
    ),
    (InFloat32, "at any offset up to 2^24 it is as at 0, unless declared absolute", "from 0 differ by"),
    (
        UndeclaredVectors,
        "at any offset up to 2^24 it is as at 0, unless declared absolute",
        "the class does not declare absolute",
    ),
    (
        DeclaredDistances,
        "at any offset up to 2^24 it is as at 0, unless declared absolute",
        "declares absolute, and a shift of all positions changes nothing",
    ),
    (TakesAll, "what it is not defined for is refused", "a bidirectional task must be refused by UnfitError"),
    (RefusesLate, "what it is not defined for is refused", "a bidirectional task must be refused by locate"),
    (Clamps, "a forward pass changes no parameter, and uses it in its range", "changes encodings.0.slope"),
    (
        OutOfRange,
        "a forward pass changes no parameter, and uses it in its range",
        "before and after constrain differ by",
    ),
    (Detached, "gradients reach every parameter", "no gradient reaches 0.slope"),
    (DeadGradient, "gradients reach every parameter", "the gradient of 0.slope is 0, and it changes the output"),
    (RootAtZero, "gradients reach every parameter", "the gradient of 0.slope is not finite"),
    (RootAtZero, "gradients are finite in mixed precision", "encodings.0.slope: gradient is not finite"),
    (ByIndex, "padding on the left equals padding on the right", "padded left and right, differ by"),
    (ByBatch, "sequences of several lengths in a batch equal each alone", "in a batch and alone differ by"),
    (ByLongest, "sequences of several lengths in a batch equal each alone", "in a batch and alone differ by"),
    (BySequence, "packed documents equal each alone", "a packed document and of it alone differ by"),
    (
        ByNeighbour,
        "scattered documents equal each alone, or are refused as declared",
        "with padding inside, and of it alone differ by",
    ),
    (Oracle, "a causal model does not see the future", "before a changed token differ by"),
    (Mute, "a causal model does not see the future", "a token changes nothing at its own slot"),
    (Mean, "tokens at padding change nothing", "for other tokens at padding differ by"),
    (
        Table,
        "beyond the training length it is defined, or refuses in one line",
        "raised IndexError in place of a ValueError",
    ),
    (LinesOfText, "beyond the training length it is defined, or refuses in one line", "the refusal has several lines"),
    (Overflows, "beyond the training length it is defined, or refuses in one line", "are not finite"),
    (RowsOnly, "a grid is read row by row", "on a grid and in a row differ by"),
    (ByEnd, "token by token, with a cache, equals the whole sequence", "decoded with a cache differ by"),
    (Forgets, "token by token, with a cache, equals the whole sequence", "raised ValueError: decay must be"),
    (Stateful, "PyTorch's attention computes what the definition says", "of the reference differ by"),
    (
        ByPlace,
        "attention in blocks of queries computes what the definition says",
        "of attention in blocks and of the reference differ by",
    ),
]


@pytest.mark.parametrize(("cls", "promise", "reason"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_promise_is_found_and_said(cls: type[PositionalEncoding], promise: str, reason: str) -> None:
    outcome = check_promise(promise, PROMISES[promise], EncodingCase("mine", partial(cls, name="mine")))
    assert outcome.holds is False
    assert reason in outcome.reason
    assert "\n" not in outcome.reason
    assert (outcome.difference is not None) == ("differ by" in reason)


def test_every_promise_has_an_encoding_that_breaks_it() -> None:
    assert {promise for _, promise, _ in BROKEN} == set(PROMISES)


class Idle(Sound):
    """Has a parameter that no output depends on, as a constant that softmax removes."""

    def __init__(self, sizes, name="idle"):
        super().__init__(sizes, name)
        self.shift = nn.Parameter(torch.zeros(1))

    def reset_parameters(self):
        super().reset_parameters()
        nn.init.zeros_(self.shift)

    def terms(self, h, layout):
        return Terms(distance_bias=super().terms(h, layout).distance_bias + 0 * self.shift)


class Declares(Sound):
    """Advances and says so; names an option and a matrix, and another one that it has not."""

    start_scale, matrices, phased = "std", ("slope", "absent"), True

    def __init__(self, sizes, name="declares", std=1.0):
        super().__init__(sizes, name)
        self.absent = None

    def advance(self, done):
        self.done = done


class InPlace(Replaces):
    def advance(self, done):
        self.temperature.fill_(2.0 - done)


@pytest.mark.parametrize("cls", [Sound, Vectors, Idle, Declares, StartsInReset, InPlace])
def test_an_encoding_that_keeps_its_promises_is_found_sound(cls: type[PositionalEncoding]) -> None:
    outcomes = list(check_promises(PROMISES, EncodingCase("mine", partial(cls, name="mine"))))
    assert {outcome.promise: outcome.reason for outcome in outcomes if outcome.holds is False} == {}
    inapplicable = ["what it is not defined for is refused"]
    if cls is Vectors:
        inapplicable.append("at any offset up to 2^24 it is as at 0, unless declared absolute")
    assert [outcome.promise for outcome in outcomes if outcome.holds is None] == inapplicable
    assert [outcome.promise for outcome in outcomes] == list(PROMISES)


class Columns(Sound):
    """Adds -exp(s_h) |column_i - column_j| to the logits, from a table of the distances that occur."""

    on_grid = True

    def terms(self, h, layout):
        table = -0.1 * self.slope.exp() * self.distances(h, layout)
        row = (layout.distance[..., 1] + layout.max_distance).clamp(0, table.shape[1] - 1)
        return Terms(pair_bias=table[:, row].transpose(0, 1))


def test_an_encoding_of_columns_keeps_its_promises() -> None:
    """A token in the first column is decoded after tokens in later ones."""
    outcomes = check_promises(PROMISES, EncodingCase("mine", partial(Columns, name="mine")))
    assert {outcome.promise: outcome.reason for outcome in outcomes if outcome.holds is False} == {}


class Jitter(MovesInSecret):
    """Declares its random positions: what follows from other layouts cannot be compared."""

    draws_positions = True


def test_what_is_drawn_for_each_layout_is_not_compared_across_layouts() -> None:
    case = EncodingCase("mine", partial(Jitter, name="mine"))
    assert case.draws
    assert not EncodingCase("mine", partial(Vectors, name="mine")).draws
    outcomes = {outcome.promise: outcome for outcome in check_promises(PROMISES, case)}
    assert {promise for promise in outcomes if outcomes[promise].holds is False} == set()
    reasons = [promise for promise in outcomes if outcomes[promise].reason == "it draws at random for each layout"]
    assert len(reasons) == 6
    assert outcomes["a causal model does not see the future"].holds


class Unmakeable(PositionalEncoding):
    def __init__(self, sizes, name="unmakeable"):
        raise UnfitError("width must be 5")


def test_an_encoding_that_cannot_be_made_is_refused_with_its_reason() -> None:
    with pytest.raises(UnfitError, match="width must be 5"):
        EncodingCase("mine", Unmakeable)


def test_a_check_leaves_the_generator_as_it_was_and_draws_the_same_each_time() -> None:
    drawn: list[torch.Tensor] = []
    for _ in range(2):
        torch.rand(1)
        state = torch.get_rng_state()
        check_promise("x", lambda subject: drawn.append(torch.rand(3)), None)
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*drawn)


def test_an_exception_of_the_class_breaks_the_promise_in_one_line() -> None:
    def check(subject: None) -> None:
        raise RuntimeError("a\nb")

    outcome = check_promise("x", check, None)
    assert outcome.holds is False
    assert outcome.reason.startswith("tests/check/test_encodings.py:")
    assert outcome.reason.endswith("check: RuntimeError: a b")


def test_what_does_not_apply_neither_holds_nor_is_broken() -> None:
    def check(subject: None) -> None:
        raise InapplicableError("why")

    assert (check_promise("x", check, None).holds, check_promise("x", check, None).reason) == (None, "why")


NAN = torch.tensor([1.0, torch.nan])


@pytest.mark.parametrize(
    ("got", "expected", "at_most", "message"),
    [
        (torch.ones(2), torch.tensor([1.0, 1.5]), 0.4, "values differ by 5.0e-01, more than 4e-01"),
        (NAN, torch.ones(2), 9.0, "values differ by nan, more than 9e"),
        (NAN, NAN, 9.0, "values differ by nan, more than 9e"),
        (torch.ones(2), torch.ones(3), 9.0, r"values: \(2,\) float32 in place of \(3,\) float32"),
        (torch.ones(2), torch.ones(2).double(), 9.0, r"values: \(2,\) float32 in place of \(2,\) float64"),
        (torch.ones(1), torch.zeros(1), 0.0, "values differ by 1.0e\\+00$"),
    ],
)
def test_values_that_differ_are_not_taken_for_equal(got, expected, at_most, message) -> None:
    with pytest.raises(BrokenError, match=message):
        largest_difference(got, expected, "values", at_most)


def test_equal_values_have_no_difference() -> None:
    assert largest_difference(torch.ones(2), torch.tensor([1.0, 1.25]), "values", 0.3) == 0.25
    assert largest_difference(torch.tensor([torch.inf]), torch.tensor([torch.inf]), "values") == 0
    assert largest_difference(torch.ones(0), torch.ones(0), "values") == 0


def test_a_refusal_is_a_value_error_in_one_line() -> None:
    def refuse(error: Exception) -> None:
        raise error

    assert refusal_message(partial(refuse, ValueError("x"))) == "x"
    assert refusal_message(partial(int, 3)) is None
    for error in (ValueError("a\nb"), IndexError("a")):
        with pytest.raises(BrokenError):
            refusal_message(partial(refuse, error))


class FixedJitter(Jitter):
    """Its random positions may be fixed."""

    fixed = False

    def fix_draws(self):
        self.fixed = True

    def locate(self, layout):
        return PositionalEncoding.locate(self, layout) if self.fixed else super().locate(layout)


def test_layouts_are_compared_where_draws_can_be_fixed() -> None:
    promise = "padding on the left equals padding on the right"
    drawn, fixed = (EncodingCase("mine", partial(cls, name="mine")) for cls in (Jitter, FixedJitter))
    assert check_promise(promise, PROMISES[promise], drawn).holds is None
    assert check_promise(promise, PROMISES[promise], fixed).holds is True
    assert fixed.depends_on_the_seed(fixed.started(fixed.sizes()), whole_layout(B, T))
