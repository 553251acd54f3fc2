"""The promises of an encoding in a model: gradients, padding, packed documents, causality, other lengths."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise, product

import torch
from torch import Tensor, nn

from pe_lab.attention import IMPLEMENTATIONS, blocked
from pe_lab.check.case import (
    VOCABULARY,
    B,
    EncodingCase,
    T,
    at_positions,
    marked_layout,
    padded_layout,
    random_tokens,
    token_mask,
    whole_layout,
)
from pe_lab.check.promise import BrokenError, Check, InapplicableError, largest_difference, refusal_message, require
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.model.transformer import Transformer

IMPLEMENTATION_LABELS = {"sdpa": "PyTorch's attention", "blocked": "attention in blocks"}
LOGIT_TOLERANCE = 1e-11  # logits of size 10, some 1e3 roundings of 1e-16 each on their way
DECODED_TOKENS = 80  # tokens that are decoded, more than a cache has room for at first
SHORT_TRAINED_LENGTH = 4  # a training length below the length of the sequences
LENGTHS = (2, 63)  # no multiples of a kernel's blocks
FAR_POSITIONS = [0, 4_999, 5_000]
PHASES = (0.0, 0.25, 0.5, 0.75, 0.999)  # shares of a training that are done, early and late
OFFSETS = (999, 65_535, 999_999, 2**22 - 1, 2**24 - 1)  # multiples of 3, the columns of a grid


def leaves_parameters_alone(case: EncodingCase) -> float:
    """Check that a forward pass changes no parameter, and uses one that left its range as constrain would set it."""
    worst = 0.0
    for causal in case.masks:
        model, tokens, layout = case.model(), random_tokens(B, T), whole_layout(B, T, causal)
        with torch.no_grad():
            for parameter in model.encodings.parameters():
                parameter.add_(3 * torch.randn_like(parameter))
        before = {key: value.clone() for key, value in model.state_dict().items()}
        logits = model(tokens, layout)
        logits.sum().backward()
        for key, value in model.state_dict().items():
            require(torch.equal(value, before[key]), f"a forward pass changes {key}")
        model.encodings.constrain()
        worst = max(worst, largest_difference(model(tokens, layout), logits, "logits before and after constrain"))
    return worst


def has_gradients(case: EncodingCase) -> None:
    """Check that finite gradients reach every parameter; one that changes no output may have the gradient 0."""
    for causal in case.masks:
        model, tokens, layout = case.model(), random_tokens(B, T), whole_layout(B, T, causal)
        logits = model(tokens, layout)
        nn.functional.cross_entropy(logits.flatten(0, 1), random_tokens(B * T)).backward()
        for key, parameter in model.encodings.named_parameters():
            gradient = parameter.grad
            require(gradient is not None, f"no gradient reaches {key}")
            assert gradient is not None
            require(gradient.isfinite().all(), f"the gradient of {key} is not finite")
            if not gradient.any() and _changes_logits(model, parameter, tokens, layout):
                raise BrokenError(f"the gradient of {key} is 0, and it changes the output")


def _changes_logits(model: Transformer, parameter: nn.Parameter, tokens: Tensor, layout: Layout) -> bool:
    """Return whether another value of a parameter changes the logits."""
    with torch.no_grad():
        before = model(tokens, layout)
        parameter.add_(0.1)
        after = model(tokens, layout)
        parameter.sub_(0.1)
    return bool((after - before).abs().max() > LOGIT_TOLERANCE)


def has_finite_gradients_in_mixed_precision(case: EncodingCase) -> None:
    """Check gradients of a float32 model under autocast, with padding and a sequence of one token."""
    for causal in case.masks:
        model, layout = case.model().float(), padded_layout([T, 4, 1], T, causal)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(random_tokens(B, T), layout).square().mean()
        loss.backward()
        for key, parameter in model.named_parameters():
            require(parameter.grad is not None and parameter.grad.isfinite().all(), f"{key}: gradient is not finite")


def _largest_difference(case: EncodingCase, check: Callable[[EncodingCase, bool, int], float]) -> float:
    """Return the largest difference over masks and training lengths, one of them below the length of the sequences.

    Raises:
        InapplicableError: the encoding draws at random, and other layouts have other draws.
    """
    if case.draws:
        raise InapplicableError("it draws at random for each layout")
    return max(check(case, causal, trained) for causal in case.masks for trained in (T, SHORT_TRAINED_LENGTH))


def takes_padding_on_the_left(case: EncodingCase) -> float:
    """Compare sequences that are padded on the left with the same, padded on the right."""
    return _largest_difference(case, _left_padding)


def _left_padding(case: EncodingCase, causal: bool, trained: int) -> float:
    model, tokens, lengths = case.model(trained), random_tokens(B, T), [T, T - 1, 4]
    right_padded_logits = model(tokens, padded_layout(lengths, T, causal))
    pos = torch.arange(T) - (T - torch.tensor(lengths)[:, None])
    layout = marked_layout(Layout(pos, torch.where(pos < 0, PADDING, 0), causal))
    left_padded_logits = model(torch.stack([row.roll(T - n) for row, n in zip(tokens, lengths, strict=True)]), layout)
    pairs = ((left_padded_logits[b, T - n :], right_padded_logits[b, :n]) for b, n in enumerate(lengths))
    return max(
        largest_difference(got, want, "logits of the same sequence, padded left and right,", LOGIT_TOLERANCE)
        for got, want in pairs
    )


def takes_lengths_together(case: EncodingCase) -> float:
    """Compare sequences of several lengths in a batch with each alone."""
    return _largest_difference(case, _together)


def _together(case: EncodingCase, causal: bool, trained: int) -> float:
    model, tokens, lengths = case.model(trained), random_tokens(B, T), [4, T, 1]
    together = model(tokens, padded_layout(lengths, T, causal))
    expected = (model(tokens[b : b + 1, :n], whole_layout(1, n, causal))[0] for b, n in enumerate(lengths))
    pairs = zip((together[b, :n] for b, n in enumerate(lengths)), expected, strict=True)
    return max(
        largest_difference(got, want, "logits of a sequence in a batch and alone", LOGIT_TOLERANCE)
        for got, want in pairs
    )


def sees_distances_alone_anywhere(case: EncodingCase) -> float:
    """Check that a shift of all positions by 3 changes nothing in float64, and one by 2^24 nothing in float32.

    Where `absolute` is declared, check that it changes something.
    """
    if case.draws or case.encoding().draws_positions:
        raise InapplicableError("it draws at random for each layout")
    worst, shifts = 0.0, []
    for causal in case.masks:
        model, tokens, layout = case.model().eval(), random_tokens(B, T), whole_layout(B, T, causal)
        with torch.no_grad():
            difference = (model(tokens, layout.shifted(3)) - model(tokens, layout)).abs().max().item()
            shifts.append(difference > LOGIT_TOLERANCE or _marks_positions(model.encodings.first, layout))
            if case.absolute:
                continue
            require(
                not shifts[-1],
                f"a shift of all positions by 3 changes vectors, or logits by {difference:.1e}, and the class does not "
                f"declare absolute",
            )
            at_start = model.float()(tokens, layout)
            for offset in OFFSETS:
                logits = model(tokens, layout.shifted(offset))
                worst = max(
                    worst,
                    largest_difference(logits, at_start, f"logits at positions from {offset} on and from 0", 1e-5),
                )
    if case.absolute:
        require(any(shifts), "the class declares absolute, and a shift of all positions changes nothing")
        raise InapplicableError("the class declares absolute")
    return worst


def _marks_positions(encoding: PositionalEncoding, layout: Layout) -> bool:
    """Return whether a shift of all positions changes what is added to tokens or to the input of attention."""
    x = torch.ones(*layout.segment.shape, encoding.sizes.width, dtype=torch.float64)

    def vectors(at: Layout) -> Tensor:
        located = encoding.locate(at)
        return torch.cat((encoding.embed(x, located), *encoding.mix(x, located)))

    return not torch.allclose(vectors(layout), vectors(layout.shifted(3)), rtol=0, atol=LOGIT_TOLERANCE)


def takes_packed_documents(case: EncodingCase) -> float:
    """Compare documents that are packed into one sequence with each alone."""
    return _largest_difference(case, _packed_deviation)


def _packed_deviation(case: EncodingCase, causal: bool, trained: int) -> float:
    model, tokens, splits, worst = case.model(trained), random_tokens(2, T), [(4, 5), (6, 2)], 0.0
    pos, segment = torch.zeros(2, T, dtype=torch.long), torch.full((2, T), PADDING)
    for b, (first, second) in enumerate(splits):
        pos[b, : first + second] = torch.cat((torch.arange(first), torch.arange(second)))
        segment[b, : first + second] = torch.tensor([0] * first + [1] * second)
    packed = model(tokens, marked_layout(Layout(pos, segment, causal)))
    for b, (first, second) in enumerate(splits):
        for start, n in ((0, first), (first, second)):
            expected = model(tokens[b : b + 1, start : start + n], whole_layout(1, n, causal))[0]
            logits = packed[b, start : start + n]
            worst = max(
                worst,
                largest_difference(logits, expected, "logits of a packed document and of it alone", LOGIT_TOLERANCE),
            )
    return worst


def takes_or_refuses_scattered_documents(case: EncodingCase) -> float:
    """Compare documents between whose tokens there are others, or padding, with each alone; or check the refusal."""
    return _largest_difference(case, _scattered_deviation)


def _scattered_deviation(case: EncodingCase, causal: bool, trained: int) -> float:
    model, worst = case.model(trained), 0.0
    for documents in ([0, 1, 0, 1, 1, 0, 0, 1, 0], [0, 0, PADDING, 0, PADDING, PADDING, 0, 1, 1]):
        tokens, segment = random_tokens(1, T), torch.tensor([documents])
        rank = Layout(torch.arange(T)[None], segment, causal).rank
        layout = marked_layout(Layout(rank, segment, causal))
        if case.contiguous_only:
            require(
                "next to each other" in (refusal_message(partial(model, tokens, layout)) or ""), "they are not refused"
            )
            continue
        logits = model(tokens, layout)
        for document in (0, 1):
            in_document = segment[0] == document
            expected = model(tokens[:, in_document], whole_layout(1, int(in_document.sum()), causal))
            description = "logits of a document between others or with padding inside, and of it alone"
            worst = max(worst, largest_difference(logits[:, in_document], expected, description, LOGIT_TOLERANCE))
    return worst


def hides_the_future(case: EncodingCase) -> float:
    """Check that a causal model's outputs do not change with later tokens, and do with the token itself."""
    model, tokens, layout, worst = case.model(), random_tokens(B, T), whole_layout(B, T), 0.0
    before = model(tokens, layout)
    for t in range(1, T):
        changed_tokens = torch.cat((tokens[:, :t], (tokens[:, t:] + 1) % VOCABULARY), 1)
        after = model(changed_tokens, layout)
        worst = max(
            worst, largest_difference(after[:, :t], before[:, :t], "logits before a changed token", LOGIT_TOLERANCE)
        )
        require((after[:, t] - before[:, t]).abs().max() > 1e-3, "a token changes nothing at its own slot")
    return worst


def keeps_its_phase_in_tensors(case: EncodingCase) -> float | None:
    """Check that `advance` changes parameters and buffers, in place: a checkpoint has them, a CUDA graph reads them."""
    model, tokens, layout, worst = case.model().eval(), random_tokens(B, T), whole_layout(B, T), 0.0
    if not model.encodings.first.phased:
        return None
    for done in PHASES:
        before = {name: tensor.data_ptr() for name, tensor in model.encodings.state_dict().items()}
        model.encodings.advance(done)
        after = {name: tensor.data_ptr() for name, tensor in model.encodings.state_dict().items()}
        for name in after:
            require(after[name] == before.get(name), f"advance makes a new tensor {name}: change it in place")
        loaded = case.model().eval()
        loaded.load_state_dict(model.state_dict())
        description = f"logits after advance({done:g}), and with the same parameters and buffers alone,"
        worst = max(worst, largest_difference(loaded(tokens, layout), model(tokens, layout), description))
    return worst


def ignores_padding(case: EncodingCase) -> float:
    """Check that the tokens that stand where padding is change nothing."""
    worst = 0.0
    for causal in case.masks:
        model, tokens = case.model(), random_tokens(B, T)
        layout = padded_layout([T, 5, 1], T, causal)
        is_token = token_mask(layout)
        changed_tokens = torch.where(is_token, tokens, (tokens + 1) % VOCABULARY)
        got, want = (model(x, layout)[is_token] for x in (changed_tokens, tokens))
        worst = max(worst, largest_difference(got, want, "logits for other tokens at padding", LOGIT_TOLERANCE))
    return worst


def is_defined_or_refuses_beyond_training(case: EncodingCase) -> None:
    """Check sequences of four times the training length, and positions far beyond it."""
    model, tokens = case.model(), random_tokens(1, 4 * T)
    for description, inputs, layout in (
        ("four times the training length", tokens, whole_layout(1, 4 * T)),
        (f"positions {FAR_POSITIONS}", tokens[:, :3], at_positions(FAR_POSITIONS)),
    ):
        if refusal_message(partial(model, inputs, layout)) is None:
            require(model(inputs, layout).isfinite().all(), f"logits at {description} are not finite")


def reads_a_grid_row_by_row(case: EncodingCase) -> float:
    """Compare a model for grids with the same for sequences, of an encoding that needs no grid."""
    if case.on_grid:
        raise InapplicableError("the class declares on_grid")
    if case.draws:
        raise InapplicableError("it draws at random for each layout")
    flat, model, tokens = case.model(), case.model(grid_width=3), random_tokens(B, T)
    shapes = [{key: value.shape for key, value in layers.state_dict().items()} for layers in (flat, model)]
    if shapes[0] != shapes[1]:
        raise InapplicableError("it has other parameters on a grid")
    model.load_state_dict(flat.state_dict())
    return largest_difference(
        model(tokens, whole_layout(B, T, grid_width=3)),
        flat(tokens, whole_layout(B, T)),
        "logits on a grid and in a row",
    )


def equals_the_definition(case: EncodingCase, lengths: tuple[int, ...] = LENGTHS) -> float:
    """Compare values and gradients of PyTorch's attention with the reference, which defines attention."""
    return max(_reference_deviation(case, "sdpa", causal, length) for causal in case.masks for length in lengths)


def equals_the_definition_in_blocks(case: EncodingCase, lengths: tuple[int, ...] = (63,)) -> float:
    """Compare values and gradients of attention in blocks of some ten queries with the reference."""
    worst = 0.0
    for causal, length in product(case.masks, lengths):
        with blocked.limit_block_size(2 * case.num_heads * length * 10):
            worst = max(worst, _reference_deviation(case, "blocked", causal, length))
    return worst


def _reference_deviation(case: EncodingCase, name: str, causal: bool, length: int) -> float:
    """Return how far an implementation is from the reference."""
    models = {implementation: case.model(length, implementation) for implementation in ("reference", name)}
    models[name].load_state_dict(models["reference"].state_dict())
    layout = padded_layout([length, length // 2 + 1], length, causal)
    tokens, is_token = random_tokens(2, length), token_mask(layout)
    encoding, h = case.encoding(length).double(), torch.zeros(2, length, case.width, dtype=torch.float64)
    located = encoding.locate(layout)
    q, _, _ = models[name].layer(0).attention.project(h, h)
    if reason := IMPLEMENTATIONS[name].refusal_reason(q, encoding.terms(h, located), located):
        raise InapplicableError(f"{IMPLEMENTATION_LABELS[name]} cannot compute it: {reason}")
    upstream = torch.randn(2, length, VOCABULARY, dtype=torch.float64)[is_token]
    logits = {implementation: model(tokens, layout)[is_token] for implementation, model in models.items()}
    for values in logits.values():
        values.backward(upstream)
    worst = largest_difference(
        logits[name],
        logits["reference"],
        f"logits of {IMPLEMENTATION_LABELS[name]} and of the reference",
        LOGIT_TOLERANCE,
    )
    expected = dict(models["reference"].named_parameters())
    for key, parameter in models[name].named_parameters():
        assert parameter.grad is not None
        want = expected[key].grad
        assert want is not None
        # sums over all slots: 1e-12 of the largest entry, and a floor for keys whose gradient is zero (the key's bias)
        atol = 1e-12 * want.abs().max().item() + LOGIT_TOLERANCE
        worst = max(worst, largest_difference(parameter.grad, want, f"gradients of {key}", atol))
    return worst


def decodes_with_a_cache(case: EncodingCase) -> float:
    """Check that tokens decoded with a cache, one by one and in chunks, have the logits of the whole sequence."""
    if True not in case.masks:
        raise InapplicableError("it has no causal attention")
    model, tokens, layout, worst = (
        case.model().eval(),
        random_tokens(B, DECODED_TOKENS),
        whole_layout(B, DECODED_TOKENS, True),
        0.0,
    )
    if reason := model.encodings.first.whole_sequence:
        raise InapplicableError(f"it refuses a cache: {reason}")
    with torch.no_grad():
        expected = model(tokens, layout)
        for borders in (range(DECODED_TOKENS + 1), (0, DECODED_TOKENS // 3, DECODED_TOKENS // 3 + 1, DECODED_TOKENS)):
            cache = model.encodings.cache()
            parts = [model(tokens[:, a:b], layout.part(a, b), cache) for a, b in pairwise(borders)]
            worst = max(worst, largest_difference(torch.cat(parts, 1), expected, "logits decoded with a cache", 1e-10))
    return worst


PROMISES: dict[str, Check[EncodingCase]] = {
    "a forward pass changes no parameter, and uses it in its range": leaves_parameters_alone,
    "gradients reach every parameter": has_gradients,
    "gradients are finite in mixed precision": has_finite_gradients_in_mixed_precision,
    "padding on the left equals padding on the right": takes_padding_on_the_left,
    "sequences of several lengths in a batch equal each alone": takes_lengths_together,
    "at any offset up to 2^24 it is as at 0, unless declared absolute": sees_distances_alone_anywhere,
    "packed documents equal each alone": takes_packed_documents,
    "scattered documents equal each alone, or are refused as declared": takes_or_refuses_scattered_documents,
    "what advance changes are parameters or buffers, in place": keeps_its_phase_in_tensors,
    "a causal model does not see the future": hides_the_future,
    "tokens at padding change nothing": ignores_padding,
    "beyond the training length it is defined, or refuses in one line": is_defined_or_refuses_beyond_training,
    "a grid is read row by row": reads_a_grid_row_by_row,
    "token by token, with a cache, equals the whole sequence": decodes_with_a_cache,
    "PyTorch's attention computes what the definition says": equals_the_definition,
    "attention in blocks of queries computes what the definition says": equals_the_definition_in_blocks,
}
