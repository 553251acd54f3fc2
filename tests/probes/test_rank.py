"""Ranks, cosines and gradient norms equal values computed by hand."""

import math
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from pe_lab.config import Model
from pe_lab.data.base import IGNORE
from pe_lab.data.seeding import initialise_parameters
from pe_lab.data.structured import Structured
from pe_lab.encodings.families.absolute import Sinusoidal
from pe_lab.encodings.layout import PADDING
from pe_lab.model import Transformer
from pe_lab.probes import rank
from pe_lab.probes.hidden_states import MAX_SEQUENCES, sample_batches
from pe_lab.probes.rank import RankProbe, effective_rank, spectrum, stable_rank, token_cosine

DEPTH, WIDTH = 3, 16
# float64 all the way; the order of sums differs
EXACT = {"rel": 1e-9, "abs": 1e-12}


def states_with(singular: list[float], count: int = 60, width: int = 9) -> Tensor:
    """Return states [N, D] with a mean other than 0 and these singular values around it."""
    one = torch.linalg.qr(torch.cat((torch.ones(count, 1), torch.randn(count, width)), 1).double()).Q
    other = torch.linalg.qr(torch.randn(width, width).double()).Q
    size = len(singular)
    return one[:, 1 : size + 1] * torch.tensor(singular).double() @ other[:, :size].T + torch.randn(width).double()


def transformer(norm: str = "pre") -> Transformer:
    model = Transformer(Model(DEPTH, WIDTH, 2, 2, norm, 0.0, 1.0, False), Sinusoidal, Structured(0).task)
    initialise_parameters(model, 0)
    return model.double()


def values(rows: list, metric: str) -> dict[int, float]:
    assert all(row["head"] is None for row in rows)
    return {row["layer"]: row["value"] for row in rows if row["metric"] == metric}


@pytest.mark.parametrize("rank", [1, 3, 8])
@pytest.mark.parametrize("size", [1e-3, 1.0, 50.0])
def test_states_of_equal_singular_values_have_as_much_rank_as_there_are(rank: int, size: float) -> None:
    singular = spectrum(states_with([size] * rank))
    assert singular is not None
    assert effective_rank(singular) == pytest.approx(rank, rel=1e-6)
    assert stable_rank(singular) == pytest.approx(rank, rel=1e-6)


def test_unequal_singular_values_count_by_their_share() -> None:
    given = [4.0, 2.0, 1.0, 1.0]
    singular = spectrum(states_with(given))
    assert singular is not None
    entropy = -sum(s / 8 * math.log(s / 8) for s in given)
    assert effective_rank(singular) == pytest.approx(math.exp(entropy), **EXACT)
    assert stable_rank(singular) == pytest.approx((16 + 4 + 1 + 1) / 16, **EXACT)


def test_equal_states_have_no_rank() -> None:
    assert spectrum(torch.full((5, 3), 2.0)) is None
    # as float32 has it: equal but for rounding
    assert spectrum(torch.full((5, 3), 2.0) + 1e-7 * torch.randn(5, 3)) is None


def test_cosine_of_alike_orthogonal_and_opposite_tokens() -> None:
    one = torch.zeros(4, dtype=torch.long)
    assert token_cosine(torch.tensor([[1.0, 2.0]]) * torch.tensor([1.0, 5.0, 0.1, 3.0])[:, None], one) == pytest.approx(
        1
    )
    assert token_cosine(3 * torch.eye(4), one) == pytest.approx(0, abs=1e-12)
    assert token_cosine(torch.tensor([[1.0, 0.0], [-2.0, 0.0]]), one[:2]) == pytest.approx(-1)


def test_cosine_is_between_tokens_of_one_sequence_and_sequences_count_equally() -> None:
    states = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    sequence = torch.tensor([0, 0, 1, 1, 1, 3])  # the third has no token, the fourth one
    assert token_cosine(states, sequence) == pytest.approx((1 + 1 / 3) / 2)
    assert token_cosine(states[-1:], sequence[:1]) is None


def by_hand(model: Transformer, data: Structured) -> tuple[list[float], list[float], Tensor]:
    """Compute the gradient norms of states and of layers' parameters, and the last states."""
    model = deepcopy(model)
    batches = list(sample_batches(model, data, "test", 0))
    tokens, targets = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("tokens", "targets"))
    lengths = torch.cat([(batch.layout.segment != PADDING).sum(1) for batch in batches])
    layout = data.task.layout(lengths, tokens.shape[1])
    x, positions = model.encodings(model.tokens(tokens), layout)
    hidden = [x]
    for index, layer in enumerate(model.layers):
        x = layer(x, index, positions, "reference")
        hidden.append(x)
    for state in hidden:
        state.retain_grad()
    logits = model.head(model.norm(x))
    asked = targets != IGNORE
    (-logits[asked].log_softmax(-1)[torch.arange(int(asked.sum())), targets[asked]]).mean().backward()
    own = [nn.utils.get_total_norm([p.grad for p in layer.parameters()]).item() for layer in model.layers]
    return [state.grad.norm().item() for state in hidden], own, x.detach()[layout.segment >= 0]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_gradient_norms_are_those_of_the_mean_loss_by_hand(norm: str) -> None:
    data, model = Structured(0), transformer(norm)
    rows = RankProbe()(model, data, 0)
    hidden, own, last = by_hand(model, data)
    # slot_losses are float32
    assert values(rows, "gradient_hidden") == pytest.approx(dict(enumerate(hidden)), rel=1e-5)
    assert values(rows, "gradient_parameters") == pytest.approx(dict(enumerate(own, 1)), rel=1e-5)
    singular = torch.linalg.svdvals(last - last.mean(0))
    assert values(rows, "stable_rank")[DEPTH] == pytest.approx((singular.norm() / singular[0]).item() ** 2, rel=1e-9)


def test_gradients_do_not_depend_on_how_sequences_are_cut_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = Structured(0), transformer()
    first = {(row["layer"], row["metric"]): row["value"] for row in RankProbe()(model, data, 0)}
    monkeypatch.setattr("pe_lab.probes.hidden_states.MAX_BATCH_SEQUENCES", 100)
    second = {(row["layer"], row["metric"]): row["value"] for row in RankProbe()(model, data, 0)}
    assert second == pytest.approx(first, rel=1e-5)


def test_every_layer_has_every_number_once() -> None:
    rows = RankProbe()(transformer(), Structured(0), 0)
    everywhere = ("effective_rank", "stable_rank", "token_cosine", "gradient_hidden")
    for metric in everywhere:
        assert list(values(rows, metric)) == list(range(DEPTH + 1))
    assert list(values(rows, "gradient_parameters")) == list(range(1, DEPTH + 1))
    assert len(rows) == 4 * (DEPTH + 1) + DEPTH


def test_layers_that_make_tokens_alike_are_seen_to() -> None:
    """The last layer adds the same large vector to every token."""
    model = transformer()
    with torch.no_grad():
        model.layers[-1].mlp[-1].bias += 1e4 * torch.randn(WIDTH)
    rows = RankProbe()(model, Structured(0), 0)
    cosine = values(rows, "token_cosine")
    assert cosine[DEPTH] > 0.999 > 0.5 > cosine[DEPTH - 1]


def test_a_layer_without_influence_has_no_gradient() -> None:
    model = transformer()
    with torch.no_grad():
        model.head.weight.zero_()
    rows = RankProbe()(model, Structured(0), 0)
    assert set(values(rows, "gradient_hidden").values()) == {0.0}


def test_at_most_256_sequences_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    true = rank.capture_states
    monkeypatch.setattr(rank, "capture_states", lambda *given: seen.append(true(*given)) or seen[-1])
    RankProbe()(transformer(), Structured(0), 0)
    assert len(seen[0].sequence.unique()) == MAX_SEQUENCES == 256
