"""Needles and chains stand where they may, answers follow from the text, and sequences are counted right."""

import math
import re
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from helpers.everything import FEW, Everything, assignments, haystacks, lists
from pe_lab.data.hashed import HashSplitDataset
from pe_lab.data.posgen import PosGen
from pe_lab.data.retrieval import Needle, VariableTracking
from pe_lab.data.words import CommonWords, FrequentWords

Task = type[Needle] | type[VariableTracking] | type[CommonWords] | type[FrequentWords] | type[PosGen]


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize(
    "options",
    [{}, {"values": 3}, {"queries": 4, "digits": 2}, {"keys": 1, "digits": 5}, {"keys": 3, "values": 2, "queries": 2}],
)
def test_a_needle_names_its_key_and_the_answer_lists_the_values_of_the_keys_asked_for(
    options: dict[str, int], factor: int
) -> None:
    data = Needle(0, **options, **FEW)
    data = data.longer(factor) if factor > 1 else data
    assert isinstance(data, Needle)
    first_key, first_symbol, mark = data.fillers, data.fillers + data.names, data.task.vocabulary - 1
    batch = data.whole("test")
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        end = tokens.index(mark)
        values: dict[int, list[list[int]]] = {}
        slot = 0
        while slot < end:
            if tokens[slot] < first_key:
                slot += 1
                continue
            key, value = tokens[slot], tokens[slot + 1 : slot + 1 + data.digits]
            assert first_key <= key < first_symbol <= min(value)
            assert max(value) < mark
            values.setdefault(key, []).append(value)
            slot += 1 + data.digits
        assert slot == end
        assert [len(found) for found in values.values()] == [data.values] * data.keys
        asked = tokens[end + 1 : end + 1 + data.queries]
        assert len(set(asked)) == data.queries
        answer = [symbol for key in asked for value in values[key] for symbol in value]
        assert tokens[end + 1 + data.queries :] == answer
        assert [target for target in targets if target >= 0] == answer
        assert targets[end + data.queries] == answer[0]


@pytest.mark.parametrize("options", [{}, {"chains": 1, "hops": 4}, {"chains": 3, "hops": 0}])
def test_the_answer_lists_the_variables_that_a_value_reaches(options: dict[str, int]) -> None:
    data = VariableTracking(0, **options, **FEW)
    equals, mark = data.task.vocabulary - 2, data.task.vocabulary - 1
    for tokens in data.whole("test").tokens.tolist():
        end = tokens.index(mark)
        known: dict[int, int] = {}  # the value of each variable, by following the text
        for slot in (slot for slot in range(end) if tokens[slot] == equals):
            variable, given = tokens[slot + 1 : slot + 3]
            assert variable not in known
            known[variable] = known.get(given, given)
        assert len(known) == data.chains * (data.hops + 1)
        assert set(Counter(known.values()).values()) == {data.hops + 1}
        assert all(value >= data.fillers + data.names for value in known.values())
        assert tokens[end + 2 :] == [variable for variable, value in known.items() if value == tokens[end + 1]]


def test_a_needle_is_equally_likely_to_stand_anywhere() -> None:
    data = Needle(0, length=16, keys=1, train=4000)
    place = (data.whole("train").tokens >= data.fillers).int().argmax(1).bincount()
    assert len(place) == data.room + 1
    expected = 4000 / len(place)
    assert (place - expected).abs().max() < 4.5 * math.sqrt(expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: haystacks(keys=3, values=1, queries=2, digits=1, names=3, symbols=2, room=1),
        lambda: haystacks(keys=2, values=2, queries=1, digits=1, names=3, symbols=2, room=1),
        lambda: assignments(chains=3, hops=0, names=4, values=3, room=1),
        lambda: assignments(chains=2, hops=1, names=5, values=2, room=1),
        lambda: lists(CommonWords(0, length=8, words=6, asked=2, common=2, **FEW), [2, 2, 1], 0),
        lambda: lists(FrequentWords(0, length=19, words=3, asked=2, **FEW), [2, 1], 13),
    ],
)
def test_different_sequences_are_counted(make: Callable[[], Everything], monkeypatch: pytest.MonkeyPatch) -> None:
    totals = []
    monkeypatch.setattr(HashSplitDataset, "require_room", lambda self, total, *_: totals.append(total))
    _, everything, _ = make()
    assert totals == [len(everything)]
    assert len(everything.tokens.unique(dim=0)) == len(everything)


def test_variables_are_as_hard_for_a_blind_predictor_as_the_number_of_chains_and_hops_says() -> None:
    floors = VariableTracking(0, chains=3, hops=2, **FEW).floors("test")
    losses = [math.log(6), math.log(5), math.log(3)]
    assert floors["position_blind"]["loss"] == pytest.approx(sum(losses) / 3, rel=1e-12)
    assert floors["prior"]["loss"] == pytest.approx(math.log(64), rel=1e-12)


def test_one_digit_of_one_needle_needs_no_order() -> None:
    assert Needle(0, keys=1, **FEW).floors("test")["position_blind"]["loss"] == pytest.approx(0, abs=1e-12)
    assert "position_blind" not in Needle(0, keys=1, digits=129, length=400, symbols=2, **FEW).floors("test")


def test_words_are_as_frequent_as_said_and_the_answer_has_the_most_frequent_ones() -> None:
    for data in (CommonWords(0, **FEW), FrequentWords(0, **FEW), FrequentWords(0, length=200, asked=5, **FEW)):
        for tokens in data.whole("test").tokens.tolist():
            end = tokens.index(data.task.vocabulary - 1)
            counts = Counter(token for token in tokens[:end] if not (data.noise and token == 0))
            assert sorted(counts.values(), reverse=True) == data.times
            assert tokens[end + 1 :] == sorted(counts, key=lambda word, c=counts: (-c[word], word))[: data.answer]
    # 60 k^-2 / zeta(2) for ranks 2 to 6
    assert FrequentWords(0).times == [9, 4, 2, 1, 1]
    assert CommonWords(0).times == [6] * 3 + [1] * 42


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Needle, {"keys": 65}, "keys must be at most names, 64, since they are different, got 65"),
        (Needle, {"queries": 5}, "queries must be at most keys, 4, got 5"),
        (Needle, {"length": 10}, "length must be at least 11, the needles, the question and the answer, got 10"),
        (VariableTracking, {"names": 5}, "names must be at least chains x (hops + 1), 6, all different, got 5"),
        (VariableTracking, {"values": 1}, "values must be at least chains, 2, since they are different, got 1"),
        (VariableTracking, {"length": 22}, "length must be at least 23, assignments, question and answer, got 22"),
        (CommonWords, {"words": 44}, "words must be at least 45, the different words of a list, got 44"),
        (
            CommonWords,
            {"length": 22},
            "length must be at least 23, the common words, another one and the end, got 22",
        ),
        (
            FrequentWords,
            {"asked": 4, "length": 66},
            "length must be such that the words that are asked for, 4, are more frequent than all others, got 66",
        ),
        (PosGen, {"length": 5}, "length must be at least near + far + 2, 6, got 5"),
        (PosGen, {"modulus": 4}, "modulus must leave at least 500 different sequences to split, got 4"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(kind: Task, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        kind(0, **options)


def test_a_length_that_needs_more_words_is_refused() -> None:
    with pytest.raises(ValueError, match="^evaluate.lengths must lead to a length .* got 8: words must be at least"):
        CommonWords(0, **FEW).longer(8)


def test_a_term_is_the_sum_of_those_before_and_of_those_the_kind_names() -> None:
    for near, far in ((3, 1), (1, 3), (2, 2)):
        for kind, others in (
            ("recurrent", lambda n, far=far, near=near: range(n - near - far, n - near)),
            ("cot", lambda n, far=far: range(far)),
            ("semirecurrent", lambda n, far=far, near=near: range((n - near - far) // 2, (n - near - far) // 2 + far)),
        ):
            data = PosGen(0, length=30, modulus=11, near=near, far=far, kind=kind, train=50, validation=50, test=50)
            batch = data.whole("test")
            assert (batch.tokens[:, 0] == 11).all()
            terms = batch.tokens[:, 1:]
            for n in range(near + far, 29):
                places = [*others(n), *range(n - near, n)]
                assert torch.equal(terms[:, n], terms[:, places].sum(1) % 11)
                assert torch.equal(batch.targets[:, n], terms[:, n])
            assert (batch.targets[:, : near + far] < 0).all()


def test_longer_posgen_continues_the_same_sequences() -> None:
    data = PosGen(0, **FEW)
    first = data.whole("test").tokens[:, 1:5]
    assert torch.equal(data.longer(4).continued(first)[:, :64], data.continued(first))
