"""Answers that a model writes itself, and how many of them are right."""

from dataclasses import replace

import hydra
import pytest
import torch
from torch import Tensor

from helpers.configs import pe_settings
from pe_lab.config import Model
from pe_lab.data.arithmetic import Addition
from pe_lab.data.base import IGNORE, Batch, Dataset
from pe_lab.data.mqar import MQAR
from pe_lab.data.seeding import derive_seed, initialise_parameters
from pe_lab.data.sequence import Copy, Sort
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.model import Transformer
from pe_lab.results.columns import GENERATED_METRIC as COLUMN
from pe_lab.training.decoding import GENERATED_METRIC, _answer_matches, exact_match_generated
from pe_lab.training.metrics import evaluate

NO_AUTOCAST = torch.autocast("cpu", enabled=False)
MANY = {"longest": 8, "train": 200, "validation": 60, "test": 120}
COPY = Copy(0, symbols=2, shortest=1, longest=12, train=200, validation=60, test=120)


class Copies(torch.nn.Module):
    """A model of COPY: it finds SEP and writes the symbol that comes as far behind START.

    Args:
        slips: the slot of the answer that is wrong where the prompt begins with 1; None: it makes no mistakes.
    """

    def __init__(self, model: Transformer, data: Copy, slips: int | None = None) -> None:
        super().__init__()
        self.tokens, self.task, self.encodings = model.tokens, model.task, model.encodings
        self.separator, self.end, self.slips = data.symbols + 1, data.symbols + 2, slips

    def forward(self, tokens: Tensor, layout, cache=None) -> Tensor:
        out = torch.zeros(*tokens.shape, self.task.outputs)
        for row, line in enumerate(tokens.tolist()):
            if self.separator not in line:
                continue
            at = line.index(self.separator)
            start = at - 1 - line[:at][::-1].index(self.separator - 1)
            for slot in range(at, len(line)):
                place = start + 1 + slot - at
                right = line[place] if place < at else self.end
                wrong = slot - at == self.slips and line[start + 1] == 1
                out[row, slot, 0 if wrong and right else 1 if wrong else right] = 1
        return out

    def answers(self, tokens: Tensor, layout, slot: Tensor) -> Tensor:
        return self(tokens, layout).flatten(0, 1)[slot]

    generate = Transformer.generate


def transformer(name: str, data: Dataset, seed: int = 0) -> Transformer:
    sizes = Model(2, 16, 2, mlp_ratio=2, norm="post", dropout=0.0, embedding_std=1.0, scale_tokens=False)
    model = Transformer(sizes, hydra.utils.instantiate(pe_settings(name)), data.task)
    initialise_parameters(model, seed)
    return model


def likely(model: Transformer, data: Dataset) -> Transformer:
    """Make START, SEP and PAD impossible and END as likely as a symbol, so that some short answers are right."""
    with torch.no_grad():
        model.head.bias[data.symbols :] = torch.tensor([-100.0, -100.0, 0.0, -100.0])
    return model


def alone(model: Transformer, batch: Batch, offset: int = 0) -> float:
    """Write the answer of each sequence alone, computing all tokens each time."""
    right = []
    for row in range(len(batch)):
        slots = (batch.targets[row] != IGNORE).nonzero().flatten().tolist()
        made = batch.tokens[row : row + 1, : slots[0] + 1]
        for _ in slots:
            layout = model.task.layout(torch.tensor([made.shape[1]]), made.shape[1]).shifted(offset)
            with torch.no_grad():
                made = torch.cat((made, model(made, layout)[:, -1:].argmax(-1)), 1)
        right.append(torch.equal(made[0, slots[0] + 1 :], batch.targets[row, slots]))
    return sum(right) / len(right)


def test_a_metric_has_one_name() -> None:
    assert GENERATED_METRIC == COLUMN


@pytest.mark.parametrize("name", ["rope", "alibi", "cpe", "learnable", "stick_breaking"])
@pytest.mark.parametrize(
    "data", [COPY, Addition(0, **MANY), Sort(0, symbols=8, **MANY)], ids=["copy", "addition", "sort"]
)
def test_it_is_exact_match_where_tokens_have_the_same_position_whatever_follows(name: str, data: Dataset) -> None:
    for seed in range(3):
        model = likely(transformer(name, data, seed), data)
        expected = evaluate(model, data, "test", NO_AUTOCAST)["exact_match"]
        assert exact_match_generated(model, data, "test", NO_AUTOCAST) == {GENERATED_METRIC: pytest.approx(expected)}


@pytest.mark.covering
@pytest.mark.parametrize("name", ["rope", "normalized", "sinusoidal"])
@pytest.mark.parametrize("offset", [0, 7])
def test_it_is_the_share_of_answers_written_one_sequence_at_a_time(name: str, offset: int) -> None:
    data = Copy(0, symbols=2, shortest=1, longest=10, train=20, validation=4, test=30)
    for seed in range(3):
        model = likely(transformer(name, data, seed), data)
        share = exact_match_generated(model, data, "test", NO_AUTOCAST, offset)
        assert share == {GENERATED_METRIC: pytest.approx(alone(model, data.whole("test"), offset))}


def test_prompts_end_together_and_begin_with_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, seen = transformer("rope", COPY), COPY.whole("test"), []

    def generate(tokens: Tensor, count: int, layout: Layout, marks: None) -> Tensor:
        seen.append((tokens, layout))
        return torch.zeros(len(tokens), count, dtype=torch.long)

    monkeypatch.setattr(model, "generate", generate)
    exact_match_generated(model, COPY, "test", NO_AUTOCAST, offset=3)
    ((tokens, layout),) = seen
    lengths = [int((row != IGNORE).nonzero()[0]) + 1 for row in batch.targets]
    assert tokens.shape == (len(batch), max(lengths))
    for row, n in enumerate(lengths):
        assert torch.equal(tokens[row, -n:], batch.tokens[row, :n])
        assert layout.pos[row, -n:].tolist() == list(range(3, 3 + n))
        assert layout.segment[row].tolist() == [PADDING] * (max(lengths) - n) + [0] * n


def test_a_perfect_model_writes_every_answer_and_one_slip_ends_it() -> None:
    model = Copies(transformer("normalized", COPY), COPY)  # which has no cache: the model sees all tokens
    assert exact_match_generated(model, COPY, "test", NO_AUTOCAST) == {GENERATED_METRIC: 1.0}
    for slips in (0, 1, 2):
        model.slips = slips
        share = exact_match_generated(model, COPY, "test", NO_AUTOCAST)[GENERATED_METRIC]
        assert 0 < share < 1
        assert share == pytest.approx(evaluate(model, COPY, "test", NO_AUTOCAST)["exact_match"])
        assert share == pytest.approx(alone(model, COPY.whole("test")))
    model.slips, model.end = None, 0
    assert exact_match_generated(model, COPY, "test", NO_AUTOCAST) == {GENERATED_METRIC: 0.0}


def test_random_positions_are_drawn_from_the_seed_of_the_batch() -> None:
    model = transformer("randomized_rope", COPY)
    seen = []
    true = model.encodings.first.draw
    model.encodings.first.draw = lambda count, seed: (seen.append(seed), true(count, seed))[1]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = exact_match_generated(model, COPY, "test", NO_AUTOCAST)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert exact_match_generated(model, COPY, "test", NO_AUTOCAST) == first
    assert set(seen) == {derive_seed(0, "evaluate", "test", 0)}


def test_answers_with_gaps_are_refused() -> None:
    model = transformer("rope", COPY)
    batch = COPY.whole("test")
    targets = batch.targets.clone()
    targets[0, (targets[0] != IGNORE).nonzero()[1]] = IGNORE

    class Gaps(Copy):
        def make(self, split: str) -> Batch:
            return replace(batch, targets=targets)

    data = Gaps(0, symbols=2, shortest=1, longest=12, train=200, validation=60, test=120)
    with pytest.raises(ValueError, match="answers must be the next tokens of a sequence to be generated"):
        exact_match_generated(model, data, "test", NO_AUTOCAST)


def test_only_tasks_that_say_so_are_generated() -> None:
    assert COPY.generates
    assert not MQAR.generates


def test_the_marks_of_an_answer_are_those_of_the_dataset() -> None:
    """Behind those of the prompt, which is padded on the left, up to that of END."""
    data = Addition(0, longest=3, train=9, validation=9, test=40)
    batch = data.batch("test", torch.arange(40))
    marks_seen: list[Tensor] = []

    class Told:
        """A model that writes nothing right."""

        def generate(self, tokens: Tensor, count: int, layout: Layout, marks: Tensor) -> Tensor:
            marks_seen.extend((layout.marks, layout.segment, marks))
            return torch.full((len(tokens), count), -1)

    assert not _answer_matches(Told(), batch, NO_AUTOCAST).any()  # type: ignore[arg-type]
    of_prompt, segment, of_answer = marks_seen
    assert of_answer.shape == (40, 5)
    for row, expected in enumerate(batch.layout.marks.tolist()):
        is_token = int((batch.layout.segment[row] != PADDING).sum())
        asked = int(batch.headline[row].sum())
        prompt = of_prompt[row][segment[row] != PADDING].tolist()
        assert prompt + of_answer[row, :asked].tolist() == expected[:is_token]


def test_marks_to_come_are_asked_for() -> None:
    data = Addition(0, longest=3, train=9, validation=9, test=9)
    batch = data.batch("test", torch.arange(2))
    model = transformer("abacus", data)
    with pytest.raises(ValueError, match="generate needs the marks of the tokens to be generated, .*, got none"):
        model.generate(batch.tokens[:, :2], 2, batch.layout.part(0, 2))
