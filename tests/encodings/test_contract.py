"""The contract of every encoding. Each file of conf/pe is tested, new ones too."""

import inspect
import re
from copy import copy
from dataclasses import replace
from functools import cache

import hydra
import pytest
import torch

from helpers.configs import FEW, pe_class, pe_settings, slow_but_for
from pe_lab.check import encodings, models
from pe_lab.check.case import (
    GRID_WIDTH,
    MAX_MARK,
    B,
    EncodingCase,
    T,
    at_positions,
    marked_layout,
    padded_layout,
    random_tokens,
    whole_layout,
)
from pe_lab.check.promise import check_promise
from pe_lab.config import Model, config_folder
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings import make, named
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.absolute import Absolute
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Stick
from pe_lab.model.transformer import Transformer

FILES = sorted((config_folder() / "pe").glob("*.yaml"))
NAMES = [path.stem for path in FILES]
CLASSES = {name: pe_class(name) for name in NAMES}
WITH_STD, WITH_SIZE = (
    [name for name in NAMES if option in inspect.signature(CLASSES[name]).parameters] for option in ("std", "size")
)
MASKED = [(name, causal) for name in NAMES for causal in (True, False) if causal or not CLASSES[name].causal_only]
D, H = 16, 2
PROMISES = encodings.PROMISES | models.PROMISES
SDPA = "PyTorch's attention computes what the definition says"
# promises that do not apply to an encoding, beside those that its class declares not to
INAPPLICABLE = {
    "a grid is read row by row": {"cpe"},  # has a kernel of its own on a grid
    "positions beyond 256 stay distinct in bfloat16": {
        "none",
        "window",
        "hard_alibi",
        "urpe",  # logits have no position
        "inkling",  # a token without content has no bias
        "temperature",  # these positions have the same factor
    },
}
# slow but for a few: tests/attention has the one for each kind of term, tests/model the other for each encoding
LONG = (
    "token by token, with a cache, equals the whole sequence",
    "attention in blocks of queries computes what the definition says",
)


@cache
def case(name: str) -> EncodingCase:
    return EncodingCase(name, hydra.utils.instantiate(pe_settings(name)), D, H)


@cache
def needs_more_than_sdpa(name: str) -> bool:
    """Return whether terms are not a product of queries and keys, a softmax with a mask, and a sum of values."""
    encoding, layout = case(name).encoding(), whole_layout(B, T)
    terms = encoding.terms(torch.randn(B, T, D), encoding.locate(layout))
    others = (terms.content_bias, terms.logit_factors, terms.weight_factors, terms.relative_values)
    return isinstance(terms.normalizer, Stick) or any(term is not None for term in others)


def applies(promise: str, name: str) -> bool:
    """Return whether a promise should apply to an encoding."""
    declared = CLASSES[name]
    excluded = {
        SDPA: promise == SDPA and needs_more_than_sdpa(name),
        "terms depend on the tokens only if that is declared": declared.reads_content,
        "what it is not defined for is refused": not (declared.causal_only or declared.on_grid or declared.reads_marks),
        "a grid is read row by row": declared.on_grid,
        "at any offset up to 2^24 it is as at 0, unless declared absolute": case(name).absolute
        or declared.draws_positions,
        "token by token, with a cache, equals the whole sequence": declared.whole_sequence is not None,
    }
    return not excluded.get(promise, False) and name not in INAPPLICABLE.get(promise, ())


def test_there_are_encodings() -> None:
    assert NAMES


@pytest.mark.parametrize(
    ("promise", "name"),
    [
        pytest.param(promise, name, marks=[pytest.mark.slow] if promise in LONG and name not in FEW else [])
        for promise in PROMISES
        for name in NAMES
    ],
)
def test_a_promise_holds(promise: str, name: str) -> None:
    """What python -m pe_lab.check pe=<name> reports; the promises stand in pe_lab/check."""
    outcome = check_promise(promise, PROMISES[promise], case(name))
    assert outcome.holds is (True if applies(promise, name) else None), outcome.reason


@pytest.mark.parametrize("name", slow_but_for())
def test_sdpa_equals_the_reference_at_lengths_that_are_no_powers_of_two(name: str) -> None:
    outcome = check_promise(SDPA, lambda case: models.equals_the_definition(case, (1, 100, 129)), case(name))
    assert outcome.holds is (True if applies(SDPA, name) else None), outcome.reason


@pytest.mark.parametrize("name", list(filter(needs_more_than_sdpa, NAMES)))
def test_a_model_refuses_an_attention_that_cannot_compute_it(name: str) -> None:
    with pytest.raises(ValueError, match="sdpa"):
        case(name).model(implementation="sdpa")(random_tokens(B, T), whole_layout(B, T))


@pytest.mark.parametrize("name", NAMES)
def test_options_with_a_neutral_value_are_in_the_file(name: str) -> None:
    taken = inspect.signature(CLASSES[name]).parameters
    assert {key for key in CLASSES[name].neutral if key in taken} <= pe_settings(name).keys()


@pytest.mark.parametrize(("name", "causal"), MASKED)
def test_gradients_reach_every_parameter_of_the_model(name: str, causal: bool) -> None:
    model = case(name).model()
    logits = model(random_tokens(B, T), padded_layout([T] * B, T, causal))
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), random_tokens(B * T)).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        unseen = name in ("fire", "dape", "dape_v2") and key.endswith("out.bias")  # by softmax: 0, or rounding
        assert parameter.grad.any() or unseen, key


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_class_and_file_name_their_source(path) -> None:
    # __dict__: a docstring that the parent wrote does not count
    docstring, text = type(case(path.stem).encoding()).__dict__["__doc__"], path.read_text()
    assert set(re.findall(r"arXiv:[\d.]+\d", text)) <= set(re.findall(r"arXiv:[\d.]+\d", docstring))
    assert re.match(r"# \S.*\n# \S", text)


def drawn_with(name: str, *overrides: str, **options: float) -> PositionalEncoding:
    encoding = hydra.utils.instantiate(pe_settings(name, *overrides), **options)(
        Sizes(64, 2, T, grid_width=case(name).grid_width, marks=MAX_MARK)
    )
    initialise_parameters(encoding, seed=5)
    return encoding


@pytest.mark.parametrize("name", WITH_STD)
def test_std_is_the_standard_deviation_of_what_is_drawn(name: str) -> None:
    """Checks all parameters of an encoding, except linear layers, which start as torch's."""
    encoding = drawn_with(name)
    linear = [part for part, module in encoding.named_modules() if isinstance(module, torch.nn.Linear)]
    default, zero, one, two = (
        {key: value.detach() for key, value in drawn_with(name, **options).named_parameters()}
        for options in ({}, {"std": 0}, {"std": 0.3}, {"std": 0.6})
    )
    for key in default:
        if key.rpartition(".")[0] not in linear:
            assert not zero[key].any()
            assert torch.equal(two[key], 2 * one[key])
            values = one[key].flatten() / 0.3  # normal: 5 standard errors of mean and standard deviation
            assert abs(values.mean()) < 5 / len(values) ** 0.5
            assert abs(values.square().mean().sqrt() - 1) < 5 / (2 * len(values)) ** 0.5
        else:
            assert torch.equal(one[key], default[key]), key
    if name == "t5":
        same = dict(drawn_with(name, f"pe.std={64**-0.5}").named_parameters())
        assert torch.equal(same["table"], default["table"])


@pytest.mark.parametrize("name", WITH_SIZE)
@pytest.mark.parametrize("size", [0.25, 4])
def test_size_is_a_factor_on_the_vectors(name: str, size: float) -> None:
    zero = torch.zeros(1, T, 64)
    seen = []
    for options in ({}, {"size": size}):
        encoding = drawn_with(name, **options)
        layout = encoding.locate(Layout.of_lengths(torch.tensor([T]), T, True, grid_width=case(name).grid_width))
        seen.append(torch.cat((encoding.embed(zero, layout), encoding.mix(zero, layout)[0])))
    assert seen[0].any()
    assert torch.equal(seen[1], size * seen[0])


@pytest.mark.parametrize("name", sorted(WITH_STD + WITH_SIZE))
@pytest.mark.parametrize("value", [0.1, 1.0])
def test_gradients_reach_every_parameter_at_every_std_and_size(name: str, value: float) -> None:
    option = "std" if name in WITH_STD else "size"
    made = hydra.utils.instantiate(pe_settings(name), **{option: value})
    small = Model(
        depth=2, width=D, num_heads=H, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    model = Transformer(small, made, Task(11, T, 11, causal=True, grid_width=case(name).grid_width, marks=MAX_MARK))
    initialise_parameters(model, seed=0)
    logits = model(random_tokens(B, T), whole_layout(B, T, grid_width=case(name).grid_width))
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), random_tokens(B * T)).backward()
    for key, parameter in model.encodings.named_parameters():
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.any(), key


def test_every_vector_and_table_of_fixed_size_has_a_setting_for_it() -> None:
    with_std = set(WITH_STD)
    with_size = set(WITH_SIZE)
    assert not with_std & with_size
    for name in NAMES:
        if CLASSES[name].start_scale or issubclass(CLASSES[name], Absolute):
            assert CLASSES[name].start_scale in inspect.signature(CLASSES[name]).parameters, name
            assert name in with_std | with_size


@pytest.mark.parametrize("name", WITH_SIZE)
def test_a_size_out_of_range_is_refused(name: str) -> None:
    make = hydra.utils.instantiate(pe_settings(name))
    for value in (0, -1.0, float("nan"), None):
        with pytest.raises(ValueError, match=r"^size must be a positive number, got "):
            make(Sizes(D, H, T, grid_width=case(name).grid_width), size=value)


@pytest.mark.parametrize("name", WITH_STD)
def test_a_std_out_of_range_is_refused(name: str) -> None:
    make = hydra.utils.instantiate(pe_settings(name))
    sizes = Sizes(D, H, T, grid_width=case(name).grid_width, marks=MAX_MARK)
    for value in (-1.0, float("nan"), float("inf"), "x"):
        with pytest.raises(ValueError, match=r"^std must be at least 0, got "):
            make(sizes, std=value)
    if pe_settings(name).std is None:
        make(sizes, std=None)
    else:
        with pytest.raises(ValueError, match=r"^std must be at least 0, got None$"):
            make(sizes, std=None)


@pytest.mark.parametrize("name", NAMES)
def test_all_other_weights_are_those_of_a_model_without_encoding(name: str) -> None:
    tested, without = case(name), copy(case("none"))
    without.depth = tested.depth
    state, plain = (
        {key: value for key, value in one.model().state_dict().items() if not key.startswith("encodings.")}
        for one in (tested, without)
    )
    assert state.keys() == plain.keys()
    assert all(torch.equal(state[key], plain[key]) for key in plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64, torch.bool])
def test_positions_that_are_neither_integers_nor_float64_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="positions must be integers, or float64"):
        Layout(torch.arange(T).to(dtype)[None], torch.zeros(1, T, dtype=torch.long), True)


@pytest.mark.covering
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_positions_of_every_integer_type_mean_the_same(name: str, dtype: torch.dtype) -> None:
    model, tokens, layout = case(name).model(), random_tokens(B, T), whole_layout(B, T, causal=True)
    assert torch.equal(model(tokens, replace(layout, pos=layout.pos.to(dtype))), model(tokens, layout))


@pytest.mark.parametrize("name", NAMES)
def test_float_positions_are_taken_where_that_is_declared_and_refused_elsewhere(name: str) -> None:
    model, tokens, layout = case(name).model(), random_tokens(B, T), whole_layout(B, T, causal=True)
    floating = replace(layout, pos=layout.pos.double())
    if model.encodings[0].float_positions:
        assert torch.equal(model(tokens, floating), model(tokens, layout))
    else:
        with pytest.raises(ValueError, match=r"^\w+ takes integer positions"):
            model(tokens, floating)


@pytest.mark.parametrize("name", NAMES)
def test_beyond_the_training_length_an_encoding_is_defined_or_refuses(name: str) -> None:
    model, tokens, table = case(name).model(), random_tokens(1, 4 * T), pe_settings(name).get("max_len")
    in_a_row = GRID_WIDTH if case(name).on_grid else 1  # tokens of which the first axis has one position
    assert model(tokens, whole_layout(1, 4 * T, causal=True)).isfinite().all()
    if table is None:
        assert model(tokens[:, :3], at_positions([0, 4_999, 5_000])).isfinite().all()
        return
    assert model(tokens[:, :2], at_positions([0, table - 1])).isfinite().all()
    with pytest.raises(ValueError, match=rf"^{name} has positions 0 to {table - 1}: .*max_len") as error:
        model(tokens[:, :2], at_positions([0, table * in_a_row]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [name for name in NAMES if CLASSES[name].causal_only])
def test_what_is_causal_only_is_refused_in_a_bidirectional_task(name: str) -> None:
    for refused in (
        lambda: hydra.utils.instantiate(pe_settings(name))(Sizes(D, H, T, causal=False)),
        lambda: case(name).model()(random_tokens(B, T), whole_layout(B, T, causal=False)),
    ):
        with pytest.raises(ValueError, match=rf"^{name} is defined for causal attention only, .*: use (\w+)$") as error:
            refused()
        assert str(error.value).rpartition(" ")[2] in NAMES


@pytest.mark.parametrize("name", [name for name in NAMES if case(name).contiguous_only])
def test_without_the_check_of_documents_the_contract_is_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    promise = "scattered documents equal each alone, or are refused as declared"
    monkeypatch.setattr(PositionalEncoding, "require_contiguous", lambda self, layout: None)
    assert check_promise(promise, PROMISES[promise], case(name)).reason == "they are not refused"
    undeclared = copy(case(name))
    undeclared.contiguous_only = False
    assert "differ by" in check_promise(promise, PROMISES[promise], undeclared).reason


@pytest.mark.parametrize("name", [name for name in NAMES if case(name).contiguous_only])
def test_a_document_that_is_taken_up_again_is_refused_in_decoding(name: str) -> None:
    stack = make(name, width=D, num_heads=H, length=T, depth=2).eval()
    first, again = (Layout(torch.tensor([[i]]), torch.tensor([[0]]), True) for i in range(2))
    other = Layout(torch.tensor([[0]]), torch.tensor([[1]]), True)
    with torch.no_grad():
        cache = stack.cache()
        for layout in (first, other):
            x, positions = stack(torch.randn(1, 1, D), layout, cache)
            for index in range(2):
                positions.layer(index, x)
        with pytest.raises(ValueError, match=rf"^{name} needs the tokens of a document next to each other"):
            stack(torch.randn(1, 1, D), again, cache)
        assert len(cache) == 2


@pytest.mark.parametrize("name", ["sum", "interleave", "heads", "dape"])
@pytest.mark.parametrize(("part", "needs"), [("rope", False), ("mapformer", True)])
def test_what_is_made_of_others_is_contiguous_only_if_a_part_is(name: str, part: str, needs: bool) -> None:
    inner = {"encoding": named.encodings()[part]} if name == "dape" else {"parts": [part, "none"]}
    assert make(name, width=D, num_heads=H, length=T, depth=2, **inner).first.contiguous_only == needs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("grid_width", [None, 3])
def test_positions_with_other_axes_than_an_encoding_takes_are_refused(name: str, grid_width: int | None) -> None:
    if case(name).on_grid and grid_width is None:
        return
    stack = make(name, width=D, num_heads=H, length=T, depth=case(name).depth, grid_width=grid_width, marks=MAX_MARK)
    for axes in (0, 1, 2, 3):
        pos = torch.arange(T)[None] if not axes else (torch.arange(T)[:, None] // 3).expand(1, T, axes)
        layout = marked_layout(Layout(pos, torch.zeros(1, T, dtype=torch.long), True, seed=4))
        if axes == 1 or (axes == 3 and not CLASSES[name].three_axes):
            error = rf"^\w+ takes positions \[B, T\], or \[B, T, 2\] on a grid.*, got \[1, {T}, {axes}\]$"
        elif axes == 2 and grid_width is None:
            error = r"^\w+ was built for sequences, got positions on a grid$"
        elif axes == 0 and case(name).on_grid:
            error = r"^\w+ needs positions on a grid"
        elif axes == 0 and name == "cpe" and grid_width is not None:
            error = rf"^{name} was built for a grid, got positions on a line$"
        else:
            stack(torch.zeros(1, T, D), layout)
            continue
        with pytest.raises(ValueError, match=error):
            stack(torch.zeros(1, T, D), layout)


@pytest.mark.parametrize("name", [name for name in NAMES if CLASSES[name].on_grid])
def test_what_needs_a_grid_is_refused_without_one(name: str) -> None:
    encoding = hydra.utils.instantiate(pe_settings(name))
    for refused in (
        lambda: encoding(Sizes(D, H, T)),
        lambda: encoding(Sizes(D, H, T, grid_width=3)).locate(whole_layout(B, T, causal=True)),
    ):
        with pytest.raises(ValueError, match=rf"^{name} needs positions on a grid, .*: use (\w+)$") as error:
            refused()
        assert str(error.value).rpartition(" ")[2] in NAMES
