"""The promises of an encoding by itself: what it declares, what it draws, in which precision it computes."""

import inspect
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from pe_lab.attention import reference
from pe_lab.attention.shapes import check_inputs
from pe_lab.check.case import B, EncodingCase, T, at_positions, same_terms, tensors_in, whole_layout
from pe_lab.check.promise import Check, InapplicableError, largest_difference, refusal_message, require
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.base import PositionalEncoding, UnfitError, default_dtype
from pe_lab.encodings.layout import Layout

LONG_LENGTH = 400  # bfloat16 cannot count past 256


def keeps_its_name(case: EncodingCase) -> None:
    """Check the name, which results and messages use."""
    name = case.encoding().name
    require(name == case.name, f"name must be {case.name!r}, got {name!r}: pass it to super().__init__(sizes, name)")


def declares_a_revision(case: EncodingCase) -> None:
    """Check the revision, and that options added later have their neutral value as default."""
    revision, neutral = case.cls.revision, case.cls.neutral
    require(type(revision) is int and revision >= 1, f"revision must be an integer of at least 1, got {revision!r}")
    parameters = inspect.signature(case.cls.__init__).parameters
    declared_here = vars(case.cls).get("neutral", {})
    for key, value in neutral.items():
        if key not in parameters and key not in declared_here:
            continue  # an option of a base class that this one does not take
        default = parameters[key].default if key in parameters else "no such option"
        require(default == value, f"neutral has {key}={value!r}, and the default is {default!r}")


def declares_that_it_advances(case: EncodingCase) -> None:
    """Check `phased`, which decides whether `advance` is called at all: where it is overridden, here or in a part."""
    encoding = case.encoding()
    for module in encoding.modules():
        if isinstance(module, PositionalEncoding) and type(module).advance is not PositionalEncoding.advance:
            require(
                encoding.phased,
                f"{type(module).__name__} overrides advance, which is called only where the class declares phased=True",
            )


def names_options_and_parameters(case: EncodingCase) -> None:
    """Check that start_scale is an option of the class, and that each of matrices is a parameter, or None."""
    option, parameters = case.cls.start_scale, inspect.signature(case.cls).parameters
    options = [key for key in parameters if key not in ("sizes", "name")]
    passes_on = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    require(
        option is None or option in options or passes_on,
        f"start_scale must be None or one of the options ({', '.join(options) or 'there are none'}), got {option!r}",
    )
    for module in case.encoding().modules():
        for name in module.matrices if isinstance(module, PositionalEncoding) else ():
            matrix = getattr(module, name, "missing")
            require(
                matrix is None or isinstance(matrix, nn.Parameter),
                f"matrices has {name!r}, which must be a parameter of {type(module).__name__}, or None",
            )


def draws_parameters_from_the_seed(case: EncodingCase) -> float:
    """Check that every parameter is drawn by reset_parameters, the same for the same seed."""
    encoding, draws = case.encoding(), []
    for _ in range(2):
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.fill_(torch.nan)
        initialise_parameters(encoding, seed=3)
        draws.append({key: value.detach().clone() for key, value in encoding.named_parameters()})
    for key, value in draws[0].items():
        require(value.isfinite().all(), f"{key} is not drawn by reset_parameters")
    return max(
        (largest_difference(draws[1][key], value, f"{key}, drawn twice,") for key, value in draws[0].items()),
        default=0.0,
    )


def keeps_shape_and_dtype(case: EncodingCase) -> None:
    """Check the outputs of embed and mix in three precisions."""
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        encoding, x = case.encoding(), torch.randn(B, T, case.width, dtype=dtype)
        layout = encoding.locate(whole_layout(B, T))
        outputs = {"embed": encoding.embed(x, layout)}
        outputs |= dict(zip(("mix for queries and keys", "mix for values"), encoding.mix(x, layout), strict=True))
        for hook, out in outputs.items():
            require(out.shape == x.shape, f"{hook} makes {tuple(out.shape)} of {tuple(x.shape)}")
            require(out.dtype == dtype, f"{hook} makes {out.dtype} of {dtype}")


def declares_whether_it_reads_content(case: EncodingCase) -> float:
    """Check that terms do not depend on the tokens' vectors."""
    if case.reads_content:
        raise InapplicableError("the class declares reads_content")
    worst = 0.0
    for causal in case.masks:
        encoding = case.encoding()
        layout = encoding.locate(whole_layout(B, T, causal))
        small, large = (encoding.terms(factor * torch.randn(B, T, case.width), layout) for factor in (1, 100))
        worst = max(worst, same_terms(small, large, "terms for other vectors, without reads_content"))
    return worst


def forms_terms_in_float32(case: EncodingCase) -> float:
    """Check that terms have the same bits in low precision."""
    worst = 0.0
    for causal in case.masks:
        encoding, h = case.encoding(LONG_LENGTH), torch.randn(1, LONG_LENGTH, case.width).bfloat16()
        layout = encoding.locate(whole_layout(1, LONG_LENGTH, causal))
        expected = encoding.terms(h.float(), layout)
        for name, tensor in tensors_in(expected):
            require(tensor.dtype == torch.float32, f"{name} must be float32 for float32 inputs, got {tensor.dtype}")
        worst = max(worst, same_terms(encoding.terms(h, layout), expected, "terms in bfloat16"))
        with torch.autocast("cpu", torch.bfloat16):
            worst = max(worst, same_terms(encoding.terms(h, layout), expected, "terms under autocast"))
            worst = max(worst, same_terms(encoding.terms(h.float(), layout), expected, "terms under autocast"))
    return worst


def forms_vectors_in_float32(case: EncodingCase) -> float:
    """Check that what is added to embeddings has the same bits under autocast."""
    encoding, zero = case.encoding(LONG_LENGTH), torch.zeros(1, LONG_LENGTH, case.width)
    layout = encoding.locate(whole_layout(1, LONG_LENGTH))
    expected = encoding.embed(zero, layout)
    with torch.autocast("cpu", torch.bfloat16):
        full, low = encoding.embed(zero, layout), encoding.embed(zero.bfloat16(), layout)
    return max(
        largest_difference(full, expected, "vectors under autocast"),
        largest_difference(low, expected.bfloat16(), "vectors for embeddings in bfloat16"),
    )


def tells_positions_beyond_256_apart(case: EncodingCase) -> None:
    """Check that positions which are different in float64 stay so in bfloat16, where 259 and 260 are one number."""
    encoding = case.encoding()
    q, k = torch.randn(2, 1, case.num_heads, 2, case.width // case.num_heads)

    def seen(pos: list[int], low: bool) -> Tensor:
        layout, zero = encoding.locate(at_positions(pos)), torch.zeros(1, 2, case.width)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            inputs = (encoding.embed(zero, layout), *encoding.mix(zero, layout))
            terms = encoding.terms(zero.bfloat16() if low else zero, layout)
        return torch.cat([x.float().flatten() for x in (*inputs, reference.logits(q, k, terms, layout))])

    differ, differ_low = (
        not torch.equal(*(seen(pos, low) for pos in ([258, 259], [258, 260]))) for low in (False, True)
    )
    if not case.reads_positions:
        require(
            not differ and not differ_low, "positions make a difference, and the class declares reads_positions=False"
        )
        return
    if not differ:
        raise InapplicableError("distances 1 and 2 look alike in float32 too")
    require(differ_low, "positions 259 and 260 look alike in bfloat16")


def stays_in_float32_when_cast(case: EncodingCase) -> float:
    """Check that an encoding in a model which is made in, and cast to, low precision has the numbers of float32."""
    worst = 0.0
    for dtype in (torch.bfloat16, torch.float16):
        state = torch.get_rng_state()
        encoding = case.encoding(LONG_LENGTH)
        torch.set_rng_state(state)
        with default_dtype(dtype):
            model = nn.ModuleList([case.encoding(LONG_LENGTH)]).to(dtype)
            worst = max(worst, _same_state(model[0], encoding, f"made and cast where {dtype} is the default"))
            _move_off(encoding)
            model.load_state_dict({f"0.{key}": value for key, value in encoding.state_dict().items()})
            worst = max(worst, _same_state(model.to(dtype)[0], encoding, f"loaded and cast to {dtype}"))
            model.load_state_dict({key: value.to(dtype) for key, value in model.state_dict().items()}, assign=True)
            _same_state(model[0], encoding, f"made of weights in {dtype}", at_most=torch.inf)
            model.load_state_dict({f"0.{key}": value for key, value in encoding.state_dict().items()})
        x, qkv = (
            torch.randn(1, LONG_LENGTH, case.width),
            torch.randn(3, 1, case.num_heads, LONG_LENGTH, case.width // case.num_heads),
        )
        cast = model[0]
        assert isinstance(cast, PositionalEncoding)
        layout, cast_layout = encoding.locate(whole_layout(1, LONG_LENGTH)), cast.locate(whole_layout(1, LONG_LENGTH))
        for activations in (torch.float32, dtype):
            try:
                expected = _results(encoding, x.to(activations), qkv.to(activations), layout)
            except ValueError:  # it takes no such activations
                continue
            with default_dtype(dtype):
                results = _results(cast, x.to(activations), qkv.to(activations), cast_layout)
            for hook, want in expected.items():
                worst = max(
                    worst, largest_difference(results[hook], want, f"{hook} of {activations} when cast to {dtype}")
                )
            if activations == dtype:
                _require_one_rounding(encoding, x, expected, layout)
    return worst


def _move_off(encoding: PositionalEncoding) -> None:
    """Move parameters off their initial values, within their range."""
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    encoding.constrain()


def _same_state(module: nn.Module, expected: nn.Module, when: str, at_most: float = 0.0) -> float:
    """Return the largest difference of two modules' parameters and buffers; raises BrokenError if above `at_most`."""
    state = dict((*module.named_parameters(), *module.named_buffers()))
    expected_state = (*expected.named_parameters(), *expected.named_buffers())
    return max(
        (largest_difference(state[key], want, f"{key}, {when},", at_most) for key, want in expected_state), default=0.0
    )


def _results(encoding: PositionalEncoding, x: Tensor, qkv: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Return what all hooks make of x [B, T, D], and attention of qkv [3, B, H, T, d] with its terms."""
    query_key, value = encoding.mix(x, layout)
    q, k, v = qkv
    terms = encoding.terms(x, layout)
    check_inputs(q, k, v, terms, layout)
    attended = reference.attend(q, k, v, terms, layout)
    return {"embed": encoding.embed(x, layout), "queries": query_key, "values": value, "attention": attended}


def _require_one_rounding(encoding: PositionalEncoding, x: Tensor, results: dict[str, Tensor], layout: Layout) -> None:
    """Check that vectors in low precision are those of the same activations in float32, rounded and added rounded."""
    dtype = results["embed"].dtype
    x = x.to(dtype).float()
    outputs = {"embed": encoding.embed(x, layout)} | dict(
        zip(("queries", "values"), encoding.mix(x, layout), strict=True)
    )
    for hook, want in outputs.items():
        allowed = torch.finfo(dtype).eps * (x.abs() + want.abs()) + torch.finfo(dtype).smallest_normal
        off = (results[hook].float() - want).abs() > allowed
        require(not off.any(), f"{hook} in {dtype} is not that of float32 up to rounding")


def draws_from_the_seed_of_the_layout(case: EncodingCase) -> float:
    """Check that random draws follow from layout.seed, and leave torch's generator alone."""
    encoding, x = case.started(case.sizes(grid_width=case.grid_width)), torch.randn(B, T, case.width)
    layout = whole_layout(B, T, grid_width=case.grid_width)
    passes = []
    for _ in range(2):
        state = torch.get_rng_state()
        located = encoding.locate(layout)
        vectors = (encoding.embed(x, located), *encoding.mix(x, located))
        passes.append((vectors, encoding.terms(x, located)))
        require(torch.equal(torch.get_rng_state(), state), "torch's global generator is drawn from: dropout needs it")
        torch.rand(3)
    (vectors, terms), (expected_vectors, expected_terms) = passes
    pairs = zip(vectors, expected_vectors, strict=True)
    worst = max(largest_difference(got, want, "vectors of the same seed") for got, want in pairs)
    return max(worst, same_terms(terms, expected_terms, "terms of the same seed"))


def declares_random_draws(case: EncodingCase) -> None:
    """Check that draws_positions or draws_each_pass is declared where a pass of training draws at random.

    Steps of such an encoding are not replayed as a CUDA graph, which would repeat the draws of the first one.
    """
    encoding = case.started(case.sizes(grid_width=case.grid_width)).train()
    _move_off(encoding)
    parts = [part for part in encoding.modules() if isinstance(part, PositionalEncoding)]
    declared = any(part.draws_positions or part.draws_each_pass for part in parts)
    require(
        declared or not case.depends_on_the_seed(encoding, whole_layout(B, T, grid_width=case.grid_width)),
        "it draws at random in training, and the class declares neither draws_positions nor draws_each_pass",
    )


def refuses_what_it_is_not_defined_for(case: EncodingCase) -> None:
    """Check that the class refuses bidirectional tasks and sequences without a grid, if it declares so."""
    if not case.causal_only and not case.on_grid and not case.reads_marks:
        raise InapplicableError("the class declares neither causal_only nor on_grid nor reads_marks")
    other: list[tuple[str, bool, int | None, bool]] = []
    if case.causal_only:
        other.append(("a bidirectional task", False, case.grid_width, True))
    if case.on_grid:
        other.append(("sequences that are no grid", True, None, True))
    if case.reads_marks:
        other.append(("tokens without marks", True, case.grid_width, False))
    for condition, causal, grid, marks in other:
        unfit = case.sizes(grid_width=grid, causal=causal)
        unfit = unfit if marks else replace(unfit, marks=None)
        try:
            case.make(unfit)
            refused = False
        except UnfitError:
            refused = True
        require(refused, f"{condition} must be refused by UnfitError when the encoding is made")
        encoding = case.make(case.sizes(grid_width=case.grid_width))
        layout = whole_layout(B, T, causal, grid)
        layout = layout if marks else replace(layout, marks=None)
        require(refusal_message(partial(encoding.locate, layout)), f"{condition} must be refused by locate")


PROMISES: dict[str, Check[EncodingCase]] = {
    "it keeps the name it is given": keeps_its_name,
    "it declares a revision, and neutral values that are defaults": declares_a_revision,
    "where it overrides advance, it declares phased": declares_that_it_advances,
    "start_scale and matrices name what it has": names_options_and_parameters,
    "reset_parameters draws every parameter, from the seed alone": draws_parameters_from_the_seed,
    "random draws follow from the layout's seed alone": draws_from_the_seed_of_the_layout,
    "random draws of training are declared": declares_random_draws,
    "embed and mix keep shape and dtype": keeps_shape_and_dtype,
    "terms depend on the tokens only if that is declared": declares_whether_it_reads_content,
    "terms are formed in float32, also under autocast": forms_terms_in_float32,
    "what is added to tokens is formed in float32": forms_vectors_in_float32,
    "positions beyond 256 stay distinct in bfloat16": tells_positions_beyond_256_apart,
    "cast to low precision, it keeps its numbers in float32": stays_in_float32_when_cast,
    "what it is not defined for is refused": refuses_what_it_is_not_defined_for,
}
