"""Options are declared in the constructor's signature and checked whenever a class is constructed."""

from collections.abc import Callable
from typing import Annotated, Literal

import pytest

from pe_lab.encodings.base import PositionalEncoding, UnfitError
from pe_lab.encodings.families.randomized import Randomized
from pe_lab.encodings.families.rotary import LRoPE, RoPE
from pe_lab.encodings.families.rotary_scaled import Yarn
from pe_lab.encodings.families.table import Learnable
from pe_lab.encodings.options import (
    Count,
    NonNegative,
    OptionError,
    Positive,
    annotated_range,
    choice_range,
    even_integers,
    integers,
    parameter_ranges,
    prefix_errors,
    require_option,
)
from pe_lab.encodings.sizes import Sizes

SIZES = Sizes(width=16, num_heads=2, length=10)


class Mine(PositionalEncoding):
    """A user's encoding, with an option `share` of its own."""

    def __init__(
        self,
        sizes: Sizes,
        name: str = "mine",
        share: Annotated[int, even_integers(most=8)] = 2,
        rate: "Positive | None" = None,
        flip: bool = False,
        free: object = None,
    ) -> None:
        super().__init__(sizes, name)
        self.share, self.free = share, free


class PassesOn(Mine):
    """Options go on to the base class."""

    def __init__(self, sizes: Sizes, name: str = "other", **options: object) -> None:
        super().__init__(sizes, name, **options)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (RoPE, {"theta": -1}, "theta must be a positive number, got -1"),
        (RoPE, {"theta": float("nan")}, "theta must be a positive number, got nan"),
        (RoPE, {"theta": True}, "theta must be a positive number, got True"),
        (RoPE, {"theta": None}, "theta must be a positive number, got None"),
        (RoPE, {"pairing": "both"}, "pairing must be one of interleaved, half, got 'both'"),
        (LRoPE, {"lr": 0}, "lr must be a positive number, got 0"),
        (LRoPE, {"share": "some"}, "share must be one of none, heads, layers, all, got 'some'"),
        (Learnable, {"share": "heads"}, "share must be one of layers, none, got 'heads'"),
        (Learnable, {"max_len": 2**25 + 1}, "max_len must be at most 33554432, got 33554433"),
        (Learnable, {"max_len": 9}, "max_len must be at least the length of the sequences, got max_len=9, length=10"),
        (Yarn, {"beta_slow": 40.0}, "beta_fast must be above beta_slow=40, got 32"),
        (Mine, {"share": 3}, "share must be an even integer of at least 2, got 3"),
        (Mine, {"share": 10}, "share must be at most 8, got 10"),
        (Mine, {"rate": 0}, "rate must be a positive number, got 0"),
        (Mine, {"flip": 1}, "flip must be true or false, got 1"),
        (PassesOn, {"share": 3}, "share must be an even integer of at least 2, got 3"),
    ],
)
def test_an_error_names_the_argument(make: Callable[..., object], options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        make(SIZES, **options)
    assert str(caught.value) == message


def test_an_option_is_checked_by_position_too() -> None:
    with pytest.raises(OptionError, match=r"^theta must be a positive number, got -1$"):
        RoPE(SIZES, "rope", -1)


def test_options_in_range_are_accepted() -> None:
    assert Mine(SIZES, share=8, rate=None, flip=True, free="anything").share == 8
    assert PassesOn(SIZES, share=4).share == 4
    assert LRoPE(SIZES, lr=None).lr is None


def test_a_default_is_checked_as_well() -> None:
    class Wrong(PositionalEncoding):
        def __init__(self, sizes: Sizes, name: str = "wrong", rate: Positive = 0.0) -> None:
            super().__init__(sizes, name)

    with pytest.raises(OptionError, match=r"^rate must be a positive number, got 0\.0$"):
        Wrong(SIZES)


def test_the_program_adds_where_an_option_stands() -> None:
    with pytest.raises(OptionError, match=r"^pe\.theta must be a positive number, got 0$"), prefix_errors("pe"):
        RoPE(SIZES, theta=0)
    with pytest.raises(OptionError, match=r"^pe\.encoding\.theta must be .*, got 0$"), prefix_errors("pe"):
        Randomized(SIZES, "mine", lambda sizes: RoPE(sizes, theta=0))


def test_the_kind_of_an_error_stays_the_same_within() -> None:
    with pytest.raises(UnfitError, match=r"^pe\.max_len must be at least the length"), prefix_errors("pe"):
        Learnable(SIZES, max_len=9)
    with (
        pytest.raises(ValueError, match=r"^rope rotates pairs: head_dim must be even, got 3") as caught,
        prefix_errors("pe"),
    ):
        RoPE(Sizes(6, 2, 10))
    assert not isinstance(caught.value, OptionError)


@pytest.mark.parametrize(
    "annotation", [float, str, float | None, int | str, Annotated[int, "text"], "Positive", object]
)
def test_an_annotation_without_a_range_declares_none(annotation: object) -> None:
    assert annotated_range(annotation) is None


@pytest.mark.parametrize(
    ("annotation", "fits", "others"),
    [
        (Positive, [1, 0.5, 5e-324], [0, -1, True, "1", None, [1], float("nan"), float("inf"), 10**400]),
        (NonNegative | None, [0, 0.0, None, 3], [-1e-9, "0", False]),
        (None | NonNegative, [None, 0], [-1]),
        (Count, [1, 2**70], [0, 1.0, True, None, "1"]),
        (Annotated[int, integers(2, most=5)], [2, 5], [1, 6, 2.5]),
        (Annotated[int, even_integers(most=4)], [2, 4], [0, 3, 6, True]),
        (Literal["a", "b"], ["a", "b"], ["c", None, ["a"], "", 1]),
        (Literal["a"] | None, ["a", None], ["b"]),
        (bool, [True, False], [0, 1, None, "true"]),
        (bool | None, [True, None], [1]),
    ],
)
def test_a_range_holds_what_its_annotation_says(annotation: object, fits: list[object], others: list[object]) -> None:
    allowed = annotated_range(annotation)
    assert allowed is not None
    for value in fits:
        require_option("x", value, allowed)
    for value in others:
        with pytest.raises(OptionError, match=r"^x must be .*, got "):
            require_option("x", value, allowed)


def test_a_long_value_is_cut_in_its_message() -> None:
    with pytest.raises(OptionError) as caught:
        require_option("x", "y" * 1000, choice_range("a"))
    assert len(str(caught.value)) < 250


def test_parameters_without_a_range_are_not_listed() -> None:
    assert list(parameter_ranges(Mine.__init__)) == ["share", "rate", "flip"]
