"""Entropy, distance and mass of known attention weights equal values computed by hand."""

import math
from collections.abc import Callable

import hydra
import pytest
import torch
from torch import Tensor

from helpers.configs import pe_settings
from pe_lab.attention import reference
from pe_lab.config import Model
from pe_lab.data.base import Batch, Floors, InMemoryDataset, Task
from pe_lab.data.seeding import initialise_parameters, make_generator
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Stick, Terms
from pe_lab.model import Transformer
from pe_lab.probes.attention import AttentionProbe, measure_weights, slot_distances

DEPTH, HEADS, WIDTH, T, VOCABULARY = 2, 2, 16, 9, 11
Values = dict[str, float]
# float32 logits of size 1; sums of 1e3 float64 numbers of size 1
ROUNDING = {"rel": 1e-5, "abs": 1e-6}


class Words(InMemoryDataset):
    """40 random sequences of 4 to 9 tokens, padded on the right; next token or class."""

    roles = ("next",)
    name = "words"

    def __init__(self, causal: bool = True, grid_width: int | None = None, whole: bool = False) -> None:
        self.task = Task(VOCABULARY, T, VOCABULARY, causal, grid_width=grid_width)
        self.whole_length = whole or grid_width is not None

    def size(self, split: str) -> int:
        return 40

    def make(self, split: str) -> Batch:
        draw = make_generator(0, "words", split)
        tokens = torch.randint(VOCABULARY, (40, T), generator=draw)
        length = torch.full((40,), T) if self.whole_length else torch.randint(4, T + 1, (40,), generator=draw)
        asked = torch.ones(40, T, dtype=torch.bool)
        return Batch(tokens, tokens, torch.zeros_like(tokens), asked, self.task.layout(length, T))

    def floors(self, split: str) -> Floors:
        return {}


class Previous(PositionalEncoding):
    """Head 0 attends to the previous token (the first to itself), head 1 to the token itself."""

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        size = h.shape[1]
        bias = torch.zeros(1, 2, size, size)
        query = torch.arange(size)
        bias[0, 0, query, (query - 1).clamp(min=0)] = 1e4
        bias[0, 1, query, query] = 1e4
        return Terms(pair_bias=bias)


class Halves(PositionalEncoding):
    """Every key takes half of the rest of the stick, the query's own first; the rest is dropped."""

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        return Terms(normalizer=Stick(include_self=True, remainder="drop"))


def model(
    data: Words, encoding: Callable[[Sizes], PositionalEncoding] = PositionalEncoding, blind: bool = False
) -> Transformer:
    """Return a model; with blind, queries and keys are 0, so that attention depends on position alone."""
    made = Transformer(Model(DEPTH, WIDTH, HEADS, 2, "pre", 0.0, 1.0, False), encoding, data.task, "reference")
    initialise_parameters(made, 0)
    if blind:
        with torch.no_grad():
            for layer in made.layers:
                layer.attention.qkv.weight[: 2 * WIDTH] = 0
                layer.attention.qkv.bias[: 2 * WIDTH] = 0
    return made


def values(rows: list, layer: int, head: int) -> Values:
    return {row["metric"]: row["value"] for row in rows if (row["layer"], row["head"]) == (layer, head)}


def lengths(data: Words) -> list[int]:
    return (data.whole("test").layout.segment != PADDING).sum(1).tolist()


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def slots(data: Words) -> list[int]:
    """Return the slot of every token that is not padding."""
    return [slot for length in lengths(data) for slot in range(length)]


def heads(rows: list) -> set[tuple[int, int]]:
    return {(row["layer"], row["head"]) for row in rows}


def test_every_head_of_every_layer_has_every_number_once() -> None:
    rows = AttentionProbe()(model(Words()), Words(), 0)
    assert heads(rows) == {(layer, head) for layer in (1, 2) for head in range(HEADS)}
    for layer, head in heads(rows):
        assert values(rows, layer, head).keys() == {"entropy", "entropy_normalised", "distance", "mass"}
    assert len(rows) == 4 * len(heads(rows))


def test_uniform_causal_attention_has_the_entropy_and_distance_of_all_before() -> None:
    data = Words()
    rows = AttentionProbe()(model(data, blind=True), data, 0)
    seen = slots(data)
    expected = {
        "entropy": mean([math.log(slot + 1) for slot in seen]),
        "entropy_normalised": 1.0,
        "distance": mean([slot / 2 for slot in seen]),
        "mass": 1.0,
    }
    for layer, head in heads(rows):
        assert values(rows, layer, head) == pytest.approx(expected, **ROUNDING)


def test_uniform_bidirectional_attention_sees_the_whole_sequence_and_no_padding() -> None:
    data = Words(causal=False)
    rows = AttentionProbe()(model(data, blind=True), data, 0)
    pairs = [mean([abs(i - j) for j in range(n)]) for n in lengths(data) for i in range(n)]
    expected = {
        "entropy": mean([math.log(n) for n in lengths(data) for _ in range(n)]),
        "entropy_normalised": 1.0,
        "distance": mean(pairs),
        "mass": 1.0,
    }
    for layer, head in heads(rows):
        assert values(rows, layer, head) == pytest.approx(expected, **ROUNDING)


def test_attention_to_one_key_has_no_entropy_and_the_distance_of_that_key() -> None:
    data = Words()
    rows = AttentionProbe()(model(data, Previous), data, 0)
    for layer in (1, 2):
        before, own = values(rows, layer, 0), values(rows, layer, 1)
        far = mean([min(slot, 1) for slot in slots(data)])
        assert before == pytest.approx({"entropy": 0, "entropy_normalised": 0, "distance": far, "mass": 1}, **ROUNDING)
        assert own == pytest.approx({"entropy": 0, "entropy_normalised": 0, "distance": 0, "mass": 1}, **ROUNDING)


def test_what_a_stick_drops_is_an_outcome_of_its_own() -> None:
    data = Words()
    rows = AttentionProbe()(model(data, Halves, blind=True), data, 0)
    entropies, shares, far, masses = [], [], [], []
    for slot in slots(data):
        weights = [0.5 ** (distance + 1) for distance in range(slot + 1)]
        outcomes = [*weights, 1 - sum(weights)]
        entropies.append(-sum(p * math.log(p) for p in outcomes))
        shares.append(entropies[-1] / math.log(len(outcomes)))
        far.append(sum(weight * distance for distance, weight in enumerate(weights)))
        masses.append(sum(weights))
    expected = {
        "entropy": mean(entropies),
        "entropy_normalised": mean(shares),
        "distance": sum(far) / sum(masses),
        "mass": mean(masses),
    }
    assert expected["mass"] < 0.99
    for layer, head in heads(rows):
        assert values(rows, layer, head) == pytest.approx(expected, **ROUNDING)


@pytest.mark.parametrize("name", ["alibi", "rope", "forgetting"])
def test_weights_are_those_that_the_layers_really_formed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Words()
    made = model(data, hydra.utils.instantiate(pe_settings(name)))
    ran: list[Tensor] = []
    true = reference.attention_weights

    def noting(q: Tensor, k: Tensor, terms: Terms, layout: Layout) -> Tensor:
        ran.append(true(q, k, terms, layout))
        return ran[-1]

    batch = data.batch("test", torch.arange(40))
    with torch.no_grad(), monkeypatch.context() as patch:
        patch.setattr(reference, "attention_weights", noting)
        made(batch.tokens, batch.layout)
    assert len(ran) == DEPTH
    rows = AttentionProbe()(made, data, 0)
    for layer, weights in enumerate(ran, 1):
        for head in range(HEADS):
            slowly: dict[str, list[float]] = {"entropy": [], "entropy_normalised": [], "far": [], "mass": []}
            for number, length in enumerate(lengths(data)):
                for i in range(length):
                    row = weights[number, head, i].double().tolist()
                    assert not any(row[i + 1 :])
                    entropy = -sum(p * math.log(p) for p in row if p > 0)
                    slowly["entropy"].append(entropy)
                    slowly["entropy_normalised"] += [entropy / math.log(i + 1)] if i else []
                    slowly["far"].append(sum(p * abs(i - j) for j, p in enumerate(row)))
                    slowly["mass"].append(sum(row))
            expected = {name: mean(slowly[name]) for name in ("entropy", "entropy_normalised", "mass")}
            expected["distance"] = sum(slowly["far"]) / sum(slowly["mass"])
            assert values(rows, layer, head) == pytest.approx(expected, **ROUNDING)


def test_distance_is_counted_in_slots_whatever_positions_an_encoding_draws() -> None:
    data = Words()
    drawn = model(data, hydra.utils.instantiate(pe_settings("randomized_learnable")), blind=True)
    expected = mean([slot / 2 for slot in slots(data)])
    for row in AttentionProbe()(drawn, data, 0):
        if row["metric"] == "distance":
            assert row["value"] == pytest.approx(expected, **ROUNDING)


def test_distance_on_a_grid_is_euclidean() -> None:
    data = Words(causal=False, grid_width=3)
    cells = [(i // 3, i % 3) for i in range(9)]
    expected = mean([math.dist(a, b) for a in cells for b in cells])
    for row in AttentionProbe()(model(data, blind=True), data, 0):
        if row["metric"] == "distance":
            assert row["value"] == pytest.approx(expected, **ROUNDING)
    assert slot_distances(data.task.layout(torch.tensor([T]), T))[0, 0, 8].item() == pytest.approx(math.sqrt(8))


def test_a_query_with_one_key_has_no_normalised_entropy() -> None:
    weight = torch.ones(1, 1, 1, 1)
    layout = Layout.of_lengths(torch.tensor([1]), 1, causal=True)
    sums = measure_weights(weight, layout, slot_distances(layout), drops=False)[:, 0].tolist()
    assert sums == [0, 0, 0, 1, 1, 0]


def test_rows_of_padding_are_not_measured() -> None:
    layout = Layout(torch.arange(4)[None], torch.tensor([[PADDING, PADDING, 0, 0]]), causal=False)
    weight = torch.zeros(1, 1, 4, 4)
    weight[0, 0, :2, :2] = 0.5
    weight[0, 0, 2, 3] = weight[0, 0, 3, 3] = 1
    sums = measure_weights(weight, layout, slot_distances(layout), drops=False)[:, 0].tolist()
    assert sums == [0, 0, 1, 2, 2, 2]


def test_documents_packed_together_are_apart() -> None:
    layout = Layout(torch.tensor([[0, 1, 0, 1, 2]]), torch.tensor([[0, 0, 1, 1, 1]]), causal=False)
    weight = layout.allowed / layout.allowed.sum(-1, keepdim=True)
    sums = measure_weights(weight, layout, slot_distances(layout), drops=False)[:, 0].tolist()
    assert sums[1] == pytest.approx(5)
    assert sums[0] == pytest.approx(2 * math.log(2) + 3 * math.log(3))
    assert sums[2] == pytest.approx(2 * 0.5 + (1 + 2 / 3 + 1))
