"""The contract of every encoding. Each file of conf/pe is tested, new ones too."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache

import hydra
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import reference, sdpa
from pe_lab.config import Model, expand, folder
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise
from pe_lab.encodings.absolute import Absolute
from pe_lab.encodings.base import PositionalEncoding, Sizes, Terms
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.randomized import Randomized
from pe_lab.model.transformer import Transformer

FILES = sorted((folder() / "pe").glob("*.yaml"))
NAMES = [path.stem for path in FILES]
CLASSES = {path.stem: hydra.utils.get_class(OmegaConf.load(path)._target_) for path in FILES}
MASKED = [(name, causal) for name in NAMES for causal in (True, False) if causal or not CLASSES[name].causal_only]
B, T, D, H, VOCABULARY = 3, 9, 16, 2, 11
# logits of size 10, some 1e3 roundings of 1e-16 each on their way
EQUAL = {"rtol": 0, "atol": 1e-11}


@cache
def settings(name: str, *overrides: str) -> DictConfig:
    return expand([f"pe={name}", *overrides], False)[0].pe


def build(name: str, length: int = T) -> PositionalEncoding:
    """Return an encoding that takes layouts on a line and draws no positions at random."""
    return on_a_line(hydra.utils.instantiate(settings(name))(Sizes(D, H, length, grid_width=grid(name))))


def grid(name: str) -> int | None:
    return 3 if CLASSES[name].on_grid else None


def on_a_line(encoding: PositionalEncoding) -> PositionalEncoding:
    locate = encoding.locate

    def located(layout: Layout) -> Layout:
        if encoding.on_grid:
            layout = replace(layout, pos=torch.stack((layout.pos, layout.pos % 3), -1))
        return locate(layout)

    encoding.locate = located
    if isinstance(encoding, Randomized):
        draw = encoding.draw
        encoding.draw = lambda count, seed: 3 * torch.arange(count) if count < 500 else draw(count, seed)
    return encoding


def small() -> Model:
    return Model(
        depth=2, width=D, num_heads=H, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )


def task(length: int, grid_width: int | None) -> Task:
    return Task(VOCABULARY, length, VOCABULARY, causal=True, grid_width=grid_width)


def transformer(name: str, length: int = T, implementation: str = "auto") -> Transformer:
    """Return a float64 model, with the encoding's parameters moved from their initial values."""
    made = hydra.utils.instantiate(settings(name))
    model = Transformer(small(), made, task(length, grid(name)), implementation)
    on_a_line(model.encodings[0])
    initialise(model, seed=0)
    with torch.no_grad():
        for parameter in model.encodings.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.double()


def tensors_in(terms: Terms, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for field in fields(terms):
        value = getattr(terms, field.name)
        if isinstance(value, Tensor):
            yield prefix + field.name, value
        elif is_dataclass(value):
            yield from tensors_in(value, f"{prefix}{field.name}.")


def assert_same_bits(terms: Terms, expected: Terms) -> None:
    got, want = dict(tensors_in(terms)), dict(tensors_in(expected))
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == want[name].dtype, name
        assert torch.equal(got[name], want[name]), name
    assert terms.weights == expected.weights


def whole(batch: int, length: int, causal: bool) -> Layout:
    return Layout.of_lengths(torch.full((batch,), length), length, causal)


def at_positions(pos: list[int], causal: bool = True) -> Layout:
    return Layout(torch.tensor([pos]), torch.zeros(1, len(pos), dtype=torch.long), causal)


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape)


def test_there_are_encodings() -> None:
    assert NAMES


@pytest.mark.parametrize("name", NAMES)
def test_name_is_the_file_stem(name: str) -> None:
    assert build(name).name == name


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_class_and_file_name_their_source(path) -> None:
    # __dict__: a docstring that the parent wrote does not count
    text = type(build(path.stem)).__dict__["__doc__"]
    assert re.search(r"arXiv:\d{4}\.\d{4,5}|seed report|\btrain(able|ed)\b", text)
    assert re.match(r"# \S", path.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_class_declares_a_revision(name: str) -> None:
    encoding = build(name)
    assert isinstance(encoding.revision, int)
    assert encoding.revision >= 1
    assert encoding.neutral.keys() <= settings(name).keys()


@pytest.mark.parametrize("name", NAMES)
def test_an_option_added_since_is_neutral_where_it_is_not_given(name: str) -> None:
    """A config stored before the option existed lacks it, and keeps its identity."""
    parameters = inspect.signature(CLASSES[name].__init__).parameters
    assert {key: parameters[key].default for key in CLASSES[name].neutral} == CLASSES[name].neutral


def drawn_with(name: str, *overrides: str) -> PositionalEncoding:
    encoding = hydra.utils.instantiate(settings(name, *overrides))(Sizes(64, 2, T, grid_width=grid(name)))
    initialise(encoding, seed=5)
    return encoding


@pytest.mark.parametrize("name", [name for name in NAMES if "std" in settings(name)])
def test_std_is_the_standard_deviation_of_what_is_drawn(name: str) -> None:
    """Checks all parameters of an encoding, except linear layers, which start as torch's."""
    encoding = drawn_with(name)
    linear = [part for part, module in encoding.named_modules() if isinstance(module, torch.nn.Linear)]
    default, zero, one, two = (
        {key: value.detach() for key, value in drawn_with(name, *given).named_parameters()}
        for given in ([], ["pe.std=0"], ["pe.std=0.3"], ["pe.std=0.6"])
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


@pytest.mark.parametrize("name", [name for name in NAMES if "size" in settings(name)])
@pytest.mark.parametrize("size", [0.25, 4])
def test_size_is_a_factor_on_the_vectors(name: str, size: float) -> None:
    zero = torch.zeros(1, T, 64)
    seen = []
    for given in ([], [f"pe.size={size}"]):
        encoding = drawn_with(name, *given)
        layout = encoding.locate(Layout.of_lengths(torch.tensor([T]), T, True, grid_width=grid(name)))
        seen.append(torch.cat((encoding.embed(zero, layout), encoding.mix(zero, layout)[0])))
    assert seen[0].any()
    assert torch.equal(seen[1], size * seen[0])


@pytest.mark.parametrize("name", [name for name in NAMES if {"std", "size"} & settings(name).keys()])
@pytest.mark.parametrize("value", [0.1, 1.0])
def test_gradients_reach_every_parameter_at_every_std_and_size(name: str, value: float) -> None:
    option = "std" if "std" in settings(name) else "size"
    made = hydra.utils.instantiate(settings(name, f"pe.{option}={value}"))
    model = Transformer(small(), made, task(T, grid(name)))
    initialise(model, seed=0)
    logits = model(random_tokens(B, T), Layout.of_lengths(torch.full((B,), T), T, True, grid_width=grid(name)))
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), random_tokens(B * T)).backward()
    for key, parameter in model.encodings.named_parameters():
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.any(), key


def test_every_vector_and_table_of_fixed_size_has_a_setting_for_it() -> None:
    with_std = {name for name in NAMES if "std" in settings(name)}
    with_size = {name for name in NAMES if "size" in settings(name)}
    assert not with_std & with_size
    assert {name for name in NAMES if issubclass(CLASSES[name], Absolute)} <= with_std | with_size
    assert with_std == {
        *("learnable", "learnable_per_layer", "learnable_2d", "relative_bias", "t5", "shaw", "transformer_xl"),
        *("deberta", "cope", "cpe"),
    }


@pytest.mark.parametrize("name", [name for name in NAMES if "size" in settings(name)])
def test_a_size_out_of_range_is_refused(name: str) -> None:
    make = hydra.utils.instantiate(settings(name))
    for value in (0, -1.0, float("nan"), None):
        with pytest.raises(ValueError, match=r"^size must be a positive number, got "):
            make(Sizes(D, H, T, grid_width=grid(name)), size=value)


@pytest.mark.parametrize("name", [name for name in NAMES if "std" in settings(name)])
def test_a_std_out_of_range_is_refused(name: str) -> None:
    make = hydra.utils.instantiate(settings(name))
    sizes = Sizes(D, H, T, grid_width=grid(name))
    for value in (-1.0, float("nan"), float("inf"), "x"):
        with pytest.raises(ValueError, match=r"^std must be at least 0, got "):
            make(sizes, std=value)
    if settings(name).std is None:
        make(sizes, std=None)
    else:
        with pytest.raises(ValueError, match=r"^std must be at least 0, got None$"):
            make(sizes, std=None)


@pytest.mark.parametrize("name", NAMES)
def test_reset_draws_every_parameter_from_the_seed(name: str) -> None:
    encoding = build(name)
    drawn = []
    for _ in range(2):
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.fill_(torch.nan)
        initialise(encoding, seed=3)
        drawn.append({key: value.clone() for key, value in encoding.state_dict().items()})
    for key, value in drawn[0].items():
        assert value.isfinite().all(), key
        assert torch.equal(value, drawn[1][key]), key


@pytest.mark.parametrize("name", NAMES)
def test_all_other_weights_are_those_of_a_model_without_encoding(name: str) -> None:
    state, plain = (
        {key: value for key, value in transformer(n).state_dict().items() if not key.startswith("encodings.")}
        for n in (name, "none")
    )
    assert state.keys() == plain.keys()
    assert all(torch.equal(state[key], plain[key]) for key in plain)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_hooks_keep_shape_and_dtype(name: str, dtype: torch.dtype) -> None:
    encoding, x = build(name), torch.randn(B, T, D, dtype=dtype)
    layout = encoding.locate(whole(B, T, causal=True))
    for out in (encoding.embed(x, layout), *encoding.mix(x, layout)):
        assert out.shape == x.shape
        assert out.dtype == dtype


@pytest.mark.parametrize(("name", "causal"), MASKED)
def test_terms_depend_on_content_only_if_the_class_declares_it(name: str, causal: bool) -> None:
    encoding = build(name)
    layout = encoding.locate(whole(B, T, causal))
    if encoding.reads_content:
        pytest.skip(f"{name} reads the content")
    assert_same_bits(encoding.terms(torch.randn(B, T, D), layout), encoding.terms(100 * torch.randn(B, T, D), layout))


@pytest.mark.parametrize(("name", "causal"), MASKED)
def test_terms_have_the_same_bits_in_low_precision(name: str, causal: bool) -> None:
    length = 400  # bfloat16 cannot count past 256
    encoding, h = build(name, length), torch.randn(1, length, D).bfloat16()
    layout = encoding.locate(whole(1, length, causal))
    expected = encoding.terms(h.float(), layout)
    assert all(tensor.dtype == torch.float32 for _, tensor in tensors_in(expected))
    assert_same_bits(encoding.terms(h, layout), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_bits(encoding.terms(h, layout), expected)
        assert_same_bits(encoding.terms(h.float(), layout), expected)


@pytest.mark.parametrize(("name", "causal"), MASKED)
def test_a_forward_pass_changes_no_parameter_and_uses_it_in_its_range(name: str, causal: bool) -> None:
    model, tokens, layout = transformer(name), random_tokens(B, T), whole(B, T, causal)
    with torch.no_grad():
        for parameter in model.encodings.parameters():
            parameter += 3 * torch.randn_like(parameter)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    seen = model(tokens, layout)
    seen.sum().backward()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    for encoding in model.encodings:
        encoding.constrain()
    assert torch.equal(model(tokens, layout), seen)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_drawn_follows_from_the_seed_of_the_layout_alone(name: str) -> None:
    """torch's global generator is left as it was: dropout draws from it, the same for every encoding."""
    encoding, x = hydra.utils.instantiate(settings(name))(Sizes(D, H, T, grid_width=grid(name))), torch.randn(B, T, D)
    layout = replace(Layout.of_lengths(torch.full((B,), T), T, True, grid_width=grid(name)), seed=4)
    state, seen = torch.get_rng_state(), []
    for _ in range(2):
        located = encoding.locate(layout)
        seen.append((encoding.embed(x, located), *encoding.mix(x, located), encoding.terms(x, located)))
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(3)
        state = torch.get_rng_state()
    assert all(map(torch.equal, seen[0][:3], seen[1][:3]))
    assert_same_bits(seen[0][3], seen[1][3])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_added_to_embeddings_is_formed_in_float32(name: str) -> None:
    length = 400
    encoding, zero = build(name, length), torch.zeros(1, length, D)
    layout = encoding.locate(whole(1, length, causal=True))
    expected = encoding.embed(zero, layout)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding.embed(zero, layout), expected)
        assert torch.equal(encoding.embed(zero.bfloat16(), layout), expected.bfloat16())


@pytest.mark.parametrize("name", NAMES)
def test_positions_beyond_256_stay_distinct_in_low_precision(name: str) -> None:
    """In bfloat16, 259 and 260 are one number."""
    encoding = build(name)
    q, k = torch.randn(2, 1, H, 2, D // H)

    def seen(pos: list[int]) -> Tensor:
        layout, zero = encoding.locate(at_positions(pos)), torch.zeros(1, 2, D)
        with torch.autocast("cpu", torch.bfloat16):
            inputs = (encoding.embed(zero, layout), *encoding.mix(zero, layout))
            terms = encoding.terms(zero.bfloat16(), layout)
        return torch.cat([x.float().flatten() for x in (*inputs, reference.logits(q, k, terms, layout))])

    reads_positions = encoding.reads_positions and type(encoding) is not PositionalEncoding
    assert torch.equal(seen([258, 259]), seen([258, 260])) is not reads_positions


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.bool])
def test_positions_that_are_not_integers_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="positions must be integers"):
        Layout(torch.arange(T).to(dtype)[None], torch.zeros(1, T, dtype=torch.long), True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_positions_of_every_integer_type_mean_the_same(name: str, dtype: torch.dtype) -> None:
    model, tokens, layout = transformer(name), random_tokens(B, T), whole(B, T, causal=True)
    assert torch.equal(model(tokens, replace(layout, pos=layout.pos.to(dtype))), model(tokens, layout))


@pytest.mark.parametrize(("name", "causal"), MASKED)
def test_gradients_reach_every_parameter(name: str, causal: bool) -> None:
    model, tokens = transformer(name), random_tokens(B, T)
    logits = model(tokens, whole(B, T, causal))
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), random_tokens(B * T)).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.any() or (name == "fire" and key.endswith("out.bias")), key  # no softmax sees a constant


@pytest.mark.parametrize(("name", "causal"), MASKED)
def test_a_model_in_mixed_precision_has_finite_gradients(name: str, causal: bool) -> None:
    model, layout = transformer(name).float(), Layout.of_lengths(torch.tensor([T, 4, 1]), T, causal)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(random_tokens(B, T), layout).square().mean()
    loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad.dtype == torch.float32, key
        assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize(("name", "causal"), MASKED)
@pytest.mark.parametrize("trained", [T, 4])
def test_left_padding_equals_right_padding(name: str, causal: bool, trained: int) -> None:
    model, tokens, lengths = transformer(name, trained), random_tokens(B, T), [T, T - 1, 4]
    right = model(tokens, Layout.of_lengths(torch.tensor(lengths), T, causal))
    pads = T - torch.tensor(lengths)[:, None]
    pos = torch.arange(T) - pads
    layout = Layout(pos, torch.where(pos < 0, PADDING, 0), causal)
    left = model(torch.stack([row.roll(T - n) for row, n in zip(tokens, lengths, strict=True)]), layout)
    for b, n in enumerate(lengths):
        assert_close(left[b, T - n :], right[b, :n], **EQUAL)


@pytest.mark.parametrize(("name", "causal"), MASKED)
@pytest.mark.parametrize("trained", [T, 4])
def test_a_batch_of_lengths_equals_each_alone(name: str, causal: bool, trained: int) -> None:
    model, tokens, lengths = transformer(name, trained), random_tokens(B, T), [4, T, 1]
    together = model(tokens, Layout.of_lengths(torch.tensor(lengths), T, causal))
    for b, n in enumerate(lengths):
        assert_close(together[b, :n], model(tokens[b : b + 1, :n], whole(1, n, causal))[0], **EQUAL)


@pytest.mark.parametrize(("name", "causal"), MASKED)
@pytest.mark.parametrize("trained", [T, 4])
def test_packed_documents_equal_each_alone(name: str, causal: bool, trained: int) -> None:
    model, tokens, splits = transformer(name, trained), random_tokens(2, T), [(4, 5), (6, 2)]
    pos, segment = torch.zeros(2, T, dtype=torch.long), torch.full((2, T), PADDING)
    for b, (first, second) in enumerate(splits):
        end = first + second
        pos[b, :end] = torch.cat((torch.arange(first), torch.arange(second)))
        segment[b, :end] = torch.tensor([0] * first + [1] * second)
    packed = model(tokens, Layout(pos, segment, causal))
    for b, (first, second) in enumerate(splits):
        for start, n in ((0, first), (first, second)):
            alone = model(tokens[b : b + 1, start : start + n], whole(1, n, causal))[0]
            assert_close(packed[b, start : start + n], alone, **EQUAL)


@pytest.mark.parametrize("name", NAMES)
def test_the_future_changes_nothing_before(name: str) -> None:
    model, tokens, layout = transformer(name), random_tokens(B, T), whole(B, T, causal=True)
    before = model(tokens, layout)
    for t in range(1, T):
        changed = torch.cat((tokens[:, :t], (tokens[:, t:] + 1) % VOCABULARY), 1)
        after = model(changed, layout)
        assert_close(after[:, :t], before[:, :t], **EQUAL)
        assert (after[:, t] - before[:, t]).abs().max() > 1e-3


@pytest.mark.parametrize(("name", "causal"), MASKED)
def test_the_content_of_padding_changes_nothing(name: str, causal: bool) -> None:
    model, tokens, lengths = transformer(name), random_tokens(B, T), torch.tensor([T, 5, 1])
    layout = Layout.of_lengths(lengths, T, causal)
    real = layout.segment != PADDING
    changed = torch.where(real, tokens, (tokens + 1) % VOCABULARY)
    assert_close(model(changed, layout)[real], model(tokens, layout)[real], **EQUAL)


@pytest.mark.parametrize("name", NAMES)
def test_beyond_the_training_length_an_encoding_is_defined_or_refuses(name: str) -> None:
    model, tokens, table = transformer(name), random_tokens(1, 4 * T), settings(name).get("max_len")
    assert model(tokens, whole(1, 4 * T, causal=True)).isfinite().all()
    if table is None:
        assert model(tokens[:, :3], at_positions([0, 4_999, 5_000])).isfinite().all()
        return
    assert model(tokens[:, :2], at_positions([0, table - 1])).isfinite().all()
    with pytest.raises(ValueError, match=rf"^{name} has positions 0 to {table - 1}: .*max_len") as error:
        model(tokens[:, :2], at_positions([0, table]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [name for name in NAMES if CLASSES[name].causal_only])
def test_what_is_causal_only_is_refused_in_a_bidirectional_task(name: str) -> None:
    for refused in (
        lambda: hydra.utils.instantiate(settings(name))(Sizes(D, H, T, causal=False)),
        lambda: transformer(name)(random_tokens(B, T), whole(B, T, causal=False)),
    ):
        with pytest.raises(ValueError, match=rf"^{name} is defined for causal attention only, .*: use (\w+)$") as error:
            refused()
        assert str(error.value).rpartition(" ")[2] in NAMES


@pytest.mark.parametrize("name", [name for name in NAMES if CLASSES[name].on_grid])
def test_what_needs_a_grid_is_refused_without_one(name: str) -> None:
    encoding = hydra.utils.instantiate(settings(name))
    for refused in (
        lambda: encoding(Sizes(D, H, T)),
        lambda: encoding(Sizes(D, H, T, grid_width=3)).locate(whole(B, T, causal=True)),
    ):
        with pytest.raises(ValueError, match=rf"^{name} needs positions on a grid, .*: use (\w+)$") as error:
            refused()
        assert str(error.value).rpartition(" ")[2] in NAMES


@pytest.mark.parametrize("name", [name for name in NAMES if not CLASSES[name].on_grid])
def test_an_encoding_on_a_line_takes_a_grid_in_reading_order(name: str) -> None:
    flat = transformer(name)
    model = Transformer(small(), hydra.utils.instantiate(settings(name)), task(T, 3)).double()
    on_a_line(model.encodings[0])
    if name == "cpe":
        pytest.skip("cpe has a kernel of its own on a grid")
    model.load_state_dict(flat.state_dict())
    tokens = random_tokens(B, T)
    on_grid = Layout.of_lengths(torch.full((B,), T), T, True, grid_width=3)
    assert torch.equal(model(tokens, on_grid), flat(tokens, whole(B, T, causal=True)))


@pytest.mark.parametrize(("name", "causal"), MASKED)
@pytest.mark.parametrize("length", [1, 2, 63, 100, 129])
def test_sdpa_equals_the_reference(name: str, causal: bool, length: int) -> None:
    """Values, and gradients of every parameter of the model."""
    models = {which: transformer(name, length, which) for which in ("reference", "sdpa")}
    models["sdpa"].load_state_dict(models["reference"].state_dict())
    tokens = random_tokens(2, length)
    layout = Layout.of_lengths(torch.tensor([length, length // 2 + 1]), length, causal)
    encoding = build(name, length).double()
    located, h = encoding.locate(layout), torch.zeros(2, length, D, dtype=torch.float64)
    q, _, _ = models["sdpa"].layers[0].attention.project(h, h)
    if reason := sdpa.refuses(q, encoding.terms(h, located), located):
        with pytest.raises(ValueError, match=re.escape(reason)):
            models["sdpa"](tokens, layout)
        return
    real = layout.segment != PADDING
    upstream = torch.randn(2, length, VOCABULARY, dtype=torch.float64)[real]
    logits = {}
    for which, model in models.items():
        logits[which] = model(tokens, layout)[real]
        logits[which].backward(upstream)
    assert_close(logits["sdpa"], logits["reference"], **EQUAL)
    expected = dict(models["reference"].named_parameters())
    for key, parameter in models["sdpa"].named_parameters():
        # sums over all slots: 1e-12 of the largest entry, and a floor for keys whose gradient is zero (the key's bias)
        atol = 1e-12 * expected[key].grad.abs().max().item() + 1e-11
        assert_close(parameter.grad, expected[key].grad, rtol=0, atol=atol, msg=lambda text, key=key: f"{key}: {text}")
