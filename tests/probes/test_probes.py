"""Every probe works for every encoding and every kind of data, and changes nothing."""

import math
from functools import cache
from pathlib import Path

import hydra
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers.configs import FEW, NAMES, TINY_MODEL, compose_config, pe_class, pe_settings
from pe_lab.check.case import MAX_MARK, marked_layout
from pe_lab.config import Model, config_folder, expand_overrides
from pe_lab.data.arithmetic import Addition
from pe_lab.data.base import IGNORE, Batch, Dataset, Floors, InMemoryDataset, Task
from pe_lab.data.seeding import initialise_parameters, make_generator
from pe_lab.data.structured import Structured
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.job import Job
from pe_lab.model import Transformer
from pe_lab.probes import Probe, ProbeRow, hidden_states, make_row
from pe_lab.probes.base import probe_class
from pe_lab.probes.hidden_states import capture_states, evaluation_mode, permute_tokens, sample_batches, watch_states
from pe_lab.results.cell_rows import settings_of
from pe_lab.results.measurement_tables import CellMeasurements, gather_records

PROBES = sorted(path.stem for path in (config_folder() / "probe").glob("*.yaml"))
DEPTH, WIDTH, HEADS, T, VOCABULARY, SIZE = 2, 16, 2, 9, 11, 24
DEEP = {"rnope_swa": 4}  # layers that an encoding needs
MARK = 10  # the token of padding


class Toy(InMemoryDataset):
    """24 sequences of up to 9 random tokens.

    Args:
        kind: "causal", padded on the right; "left", the same on the left; "bidirectional"; "pooled", one of two classes
            asked of each; "grid", 3 x 3; "packed", two documents each.
        mark: the token of padding.
    """

    roles = ("asked",)

    def __init__(self, kind: str, mark: int = MARK) -> None:
        self.name = self.kind = kind
        self.mark = mark
        grid, pooled = (3 if kind == "grid" else None), kind in ("pooled", "grid")
        outputs = 2 if pooled else VOCABULARY
        self.task = Task(VOCABULARY, T, outputs, kind in ("causal", "left", "packed"), pooled, grid, MAX_MARK)

    def size(self, split: str) -> int:
        return SIZE

    def make(self, split: str) -> Batch:
        draw = make_generator(0, "toy", split)
        length = torch.full((SIZE,), T) if self.kind == "grid" else torch.randint(4, T + 1, (SIZE,), generator=draw)
        layout = self.task.layout(length, T)
        slot = torch.arange(T).expand(SIZE, T)
        if self.kind == "left":
            slot = (slot - (T - length)[:, None]) % T
            layout = Layout(slot, layout.segment.gather(1, slot), True)
        if self.kind == "packed":
            segment = layout.segment.where((layout.segment == PADDING) | (slot < 2), 1)
            layout = Layout(slot[:1] - 2 * (slot[:1] >= 2), segment, True)
        is_token = layout.segment != PADDING
        tokens = torch.randint(VOCABULARY - 1, (SIZE, T), generator=draw).gather(1, slot).where(is_token, self.mark)
        if self.task.pooled:
            targets = torch.randint(2, (SIZE, 1), generator=draw)
        else:
            targets = torch.randint(VOCABULARY, (SIZE, T), generator=draw).gather(1, slot).where(is_token, IGNORE)
        return Batch(tokens, targets, torch.zeros_like(targets), targets != IGNORE, marked_layout(layout))

    def floors(self, split: str) -> Floors:
        return {}


def kinds(name: str) -> list[str]:
    """Return a causal and a bidirectional kind of data that the encoding supports."""
    made = pe_class(name)
    if made.on_grid:
        return ["grid"]
    return ["packed"] if made.causal_only else ["packed", "grid"]


# a second kind of data is slow, and encodings whose terms are like those of others
CASES = [
    pytest.param(name, kind, marks=[pytest.mark.slow] if place or name not in FEW else [])
    for name in NAMES
    for place, kind in enumerate(kinds(name))
]


def transformer(data: Dataset, name: str = "none", dropout: float = 0.0) -> Transformer:
    """Return a model whose encoding is not at its initial values."""
    model = Transformer(
        Model(DEEP.get(name, DEPTH), WIDTH, HEADS, 2, "pre", dropout, 1.0, False),
        hydra.utils.instantiate(pe_settings(name)),
        data.task,
    )
    initialise_parameters(model, seed=0)
    with torch.no_grad():
        for parameter in model.encodings.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


@cache
def probe(name: str) -> Probe:
    return hydra.utils.instantiate(compose_config(f"probe=[{name}]").probe[name])


def all_rows(model: Transformer, data: Toy | Structured, seed: int = 0) -> dict[str, list[ProbeRow]]:
    return {name: probe(name)(model, data, seed) for name in PROBES}


def test_a_file_of_the_folder_is_a_probe_of_its_name() -> None:
    assert {"position", "attention", "rank", "subspace"} <= set(PROBES)
    for name in PROBES:
        assert list(compose_config(f"probe=[{name}]").probe) == [name]
        assert type(probe(name)).__doc__


MEAN = """
from pe_lab.probes import Probe, make_row
from pe_lab.probes.hidden_states import capture_states

class Mean(Probe):
    def __init__(self, power=1):
        self.power = power

    def __call__(self, model, dataset, seed):
        return [make_row("mean", capture_states(model, dataset, "test", seed).hidden[0].mean().item() ** self.power)]
"""
TINY = (*TINY_MODEL, "trainer.batch_size=512", "epochs=1", "logger=none")


def cell(ledger: Path, *overrides: str) -> Cell:
    return Cell.from_config(expand_overrides([*TINY, "trainer.device=cpu", f"ledger={ledger}", *overrides], False)[0])


def test_the_request_of_a_probe_of_ours_is_its_name_and_revision(tmp_path: Path) -> None:
    made = cell(tmp_path, f"probe=[{','.join(PROBES)}]", "evaluate.lengths=[1,2]")
    found = [request for request in made.requests if request["kind"] == "probe"]
    plain = [{"kind": "probe", "probe": name, "revision": 1} for name in PROBES]
    assert found == [request | longer for request in plain for longer in ({}, {"length": 2})]


def test_a_probe_of_the_users_is_measured_by_its_path_and_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "probe_of_mine.py").write_text(MEAN)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("+probe.mean._target_=probe_of_mine.Mean", "+probe.mean.power=2")
    job = Job(cell(tmp_path / "ledger", *words))
    (request,) = job.cell.requests
    assert request["options"] == {"power": 2, "class": "probe_of_mine.Mean", "source": request["options"]["source"]}
    job.request()
    job.complete(wait=True)
    rows = job.records.get(request)
    assert rows["metric"].tolist() == ["mean"]
    assert list(
        gather_records([CellMeasurements(settings_of(job.cell.cfg), job.run, 1, job.cell.requests)])["probe"]
    ) == ["mean"]
    with pytest.raises(ValueError, match=r"probe.rank._target_ must be pe_lab.probes.rank.RankProbe, got 'probe_of"):
        cell(tmp_path, "probe=[rank]", "probe.rank._target_=probe_of_mine.Mean")


@pytest.mark.parametrize("words", ["+probe._target_=probe_of_mine.Mean", "+probe.mine=3"])
def test_a_probe_without_a_class_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r"must be settings with a _target_, got .*begins with # @package probe"):
        expand_overrides([words], False)


def test_a_class_that_is_no_probe_is_refused() -> None:
    with pytest.raises(ValueError, match=r"probe.mine._target_ must be a class derived from Probe, got builtins.dict"):
        probe_class("mine", {"_target_": "builtins.dict"})


def test_arguments_that_a_probe_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match=r"probe.rank must have the arguments of .*'power'"):
        probe_class("rank", {"_target_": "pe_lab.probes.rank.RankProbe", "power": 2})


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_encoding_gives_finite_rows_and_the_same_ones_twice_and_is_left_as_it_was(name: str, kind: str) -> None:
    data = Toy(kind)
    model = transformer(data, name, dropout=0.5).train()
    model.layers[0].eval()
    modes = {key: module.training for key, module in model.named_modules()}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    torch.manual_seed(7)
    generator_state = torch.random.get_rng_state()

    first = all_rows(model, data)

    assert torch.equal(torch.random.get_rng_state(), generator_state)
    assert {key: module.training for key, module in model.named_modules()} == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    for rows in first.values():
        assert rows
        assert all(set(one) == {"layer", "head", "metric", "value"} for one in rows)
        assert all(isinstance(one["value"], float) and math.isfinite(one["value"]) for one in rows)
        places = [without_value(one) for one in rows]
        assert len(set(places)) == len(places)
        assert {layer for layer, *_ in places} <= {None, *range(DEEP.get(name, DEPTH) + 1)}
    if kind == kinds(name)[0]:
        torch.manual_seed(8)
        assert all_rows(model, data) == first


@pytest.mark.parametrize("kind", ["causal", "left", "bidirectional", "pooled", "packed"])
def test_padding_does_not_count(kind: str) -> None:
    """No number depends on the token of padding."""
    expected = all_rows(transformer(Toy(kind), "rope"), Toy(kind))
    assert all_rows(transformer(Toy(kind), "rope"), Toy(kind, mark=3)) == expected


def test_padding_on_the_left_gives_the_numbers_of_padding_on_the_right() -> None:
    right, left = (all_rows(transformer(Toy(kind), "rope"), Toy(kind)) for kind in ("causal", "left"))
    for name in PROBES:
        assert [without_value(one) for one in left[name]] == [without_value(one) for one in right[name]]
        values = [[one["value"] for one in rows[name]] for rows in (left, right)]
        # float32 states; shifted phrases change by rounding alone
        assert values[0] == pytest.approx(values[1], rel=1e-3, abs=1e-5)


def test_the_structured_task_is_probed() -> None:
    data = Structured(0)
    for rows in all_rows(transformer(data, "learnable"), data).values():
        assert rows
        assert all(math.isfinite(one["value"]) for one in rows)


@pytest.mark.parametrize("kind", ["causal", "left", "bidirectional", "pooled", "grid", "packed"])
def test_states_are_those_of_the_tokens_that_count(kind: str) -> None:
    """Compare with states computed sequence by sequence."""
    data = Toy(kind)
    model = transformer(data, "sinusoidal")
    states = capture_states(model, data, "test", 5)
    order = torch.randperm(SIZE, generator=make_generator(5, "probe", "test"))
    whole = data.batch("test", order)
    pos = whole.layout.pos.expand(*whole.layout.segment.shape, *whole.layout.pos.shape[2:])
    start = 0
    for number in range(SIZE):
        is_token = whole.layout.segment[number] != PADDING
        count = int(is_token.sum())
        mine = slice(start, start + count)
        assert states.sequence[mine].tolist() == [number] * count
        assert torch.equal(states.tokens[mine], whole.tokens[number][is_token])
        assert torch.equal(states.pos[mine], pos[number][is_token].reshape(count, -1))
        start += count
    assert start == len(states.tokens) == len(states.pos)
    with torch.no_grad():
        x, positions = model.encodings(model.tokens(whole.tokens), whole.layout)
        is_token = whole.layout.segment != PADDING
        assert_close(states.hidden[0], x[is_token])
        assert len(states.hidden) == DEPTH + 1
        for number, layer in enumerate(model.layers, 1):
            x = layer(x, number - 1, positions, "reference")
            assert_close(states.hidden[number], x[is_token], rtol=1e-4, atol=1e-5)


def test_what_an_encoding_draws_depends_on_seed_and_split_and_changes_between_batches() -> None:
    data = Toy("causal")
    model = transformer(data, "randomized_learnable")
    drawn: list[list[list[int]]] = []
    true = model.encodings[0].draw

    def noting(count: int, seed: int | None) -> Tensor:
        assert seed is not None
        positions = true(count, seed)
        drawn[-1].append(positions.tolist())
        return positions

    model.encodings[0].draw = noting
    for number, (split, seed) in enumerate([("test", 0), ("test", 0), ("test", 1), ("train", 0)]):
        torch.manual_seed(number)
        drawn.append([])
        capture_states(model, data, split, seed)
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == math.ceil(SIZE / hidden_states.MAX_BATCH_SEQUENCES) > 1
    different = [positions for number in (0, 2, 3) for positions in drawn[number]]
    assert len({tuple(positions) for positions in different}) == len(different)


def test_positions_are_those_of_the_dataset_not_those_drawn() -> None:
    data = Toy("causal")
    plain, drawn = (
        capture_states(transformer(data, name), data, "test", 0).pos for name in ("none", "randomized_alibi")
    )
    assert torch.equal(plain, drawn)


def test_the_sample_is_bounded_and_drawn_by_the_seed() -> None:
    data = Structured(0)
    model = transformer(data)
    with evaluation_mode(model):
        batches = [list(sample_batches(model, data, "test", seed)) for seed in (0, 0, 1)]
    tokens = [torch.cat([batch.tokens for batch in of_seed]) for of_seed in batches]
    assert len(tokens[0]) == hidden_states.MAX_SEQUENCES
    assert len(tokens[0].unique(dim=0)) == hidden_states.MAX_SEQUENCES
    assert torch.equal(tokens[0], tokens[1])
    assert not torch.equal(tokens[0], tokens[2])
    everything = {tuple(line) for line in data.whole("test").tokens.tolist()}
    assert {tuple(line) for line in tokens[0].tolist()} <= everything


def test_the_halves_of_a_split_have_no_sequence_in_common_and_random_draws_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = Structured(0)
    model, size = transformer(data), data.size("test")

    def halves(seed: int) -> list[list[Batch]]:
        with evaluation_mode(model):
            return [list(sample_batches(model, data, "test", seed, half=half)) for half in range(2)]

    def lines(of_half: list[Batch]) -> set[tuple[int, ...]]:
        return {tuple(line) for batch in of_half for line in batch.tokens.tolist()}

    one, other = halves(0)
    assert len(lines(one)) == len(lines(other)) == hidden_states.MAX_SEQUENCES < size
    assert not lines(one) & lines(other)
    assert lines(halves(1)[0]) != lines(one) == lines(halves(0)[0])
    seeds = [batch.layout.seed for batch in (*one, *other)]
    assert len(set(seeds)) == len(seeds)
    monkeypatch.setattr(hidden_states, "MAX_SEQUENCES", size)
    assert len(set.union(*map(lines, halves(0)))) == size


def test_a_split_without_sequences_is_named() -> None:
    data = Addition(0, train=64, validation=8, test=8).longer(2)
    with pytest.raises(
        ValueError, match="sequences to read, got none of 23 tokens in the train split of data=addition"
    ):
        capture_states(transformer(data), data, "train", 0)


def test_there_are_fewer_sequences_where_they_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Structured(0)
    model = transformer(data)

    def count() -> int:
        with evaluation_mode(model):
            return sum(len(batch) for batch in sample_batches(model, data, "test", 0))

    monkeypatch.setattr(hidden_states, "MAX_TOKENS", 16 * 40)
    assert count() == 40
    monkeypatch.setattr(hidden_states, "MAX_TOKENS", 16)
    assert count() == hidden_states.MIN_SEQUENCES
    monkeypatch.setattr(hidden_states, "MAX_BATCH_PAIRS", 16 * 16 * 3)
    with evaluation_mode(model):
        assert [len(batch) for batch in sample_batches(model, data, "test", 0)] == [3] * 5 + [1]


@pytest.mark.parametrize(("kind", "step"), [("causal", 4), ("grid", torch.tensor([4, 0]))])
def test_an_offset_moves_the_positions_and_nothing_else(kind: str, step: int | Tensor) -> None:
    data = Toy(kind)
    model = transformer(data)
    whole = data.whole("test").layout.pos.clone()
    with evaluation_mode(model):
        pairs = zip(
            sample_batches(model, data, "test", 0), sample_batches(model, data, "test", 0, offset=4), strict=True
        )
        for here, there in pairs:
            assert torch.equal(here.layout.pos + step, there.layout.pos)
            assert torch.equal(here.tokens, there.tokens)
            assert torch.equal(here.layout.segment, there.layout.segment)
    assert torch.equal(data.whole("test").layout.pos, whole)


@pytest.mark.parametrize("name", ["sinusoidal", "sinusoidal_2d"])
def test_on_a_grid_phrases_move_by_rows(name: str) -> None:
    data = Toy("grid")
    model = transformer(data, name)
    found = {without_value(one): one["value"] for one in probe("subspace")(model, data, 0)}
    before = capture_states(model, data, "test", 0).hidden
    for metric, rows in (("moved_by_1", 1), ("moved_by_length", 3)):
        after = capture_states(model, data, "test", 0, rows).hidden
        for layer, (one, other) in enumerate(zip(before, after, strict=True)):
            expected = ((other - one).norm() / one.norm()).item()
            assert expected > 0.05
            assert found[layer, None, metric] == pytest.approx(expected, rel=1e-4)


def test_permuted_values_stay_in_their_sequence() -> None:
    sequence = torch.arange(50).repeat_interleave(torch.randint(1, 9, (50,)))
    values = torch.stack((torch.arange(len(sequence)), sequence), 1)
    permuted = permute_tokens(values, sequence, 0)
    assert torch.equal(permuted[:, 1], sequence)
    assert torch.equal(permuted[:, 0].sort().values, values[:, 0])
    assert (permuted[:, 0] != values[:, 0]).float().mean() > 0.5
    assert torch.equal(permute_tokens(values, sequence, 0), permuted)
    assert not torch.equal(permute_tokens(values, sequence, 1), permuted)


def test_a_probe_that_fails_leaves_the_model_as_it_was() -> None:
    data = Toy("causal")
    model = transformer(data).train()
    before = torch.random.get_rng_state()

    def fail() -> None:
        with evaluation_mode(model), watch_states(model):
            torch.rand(1)
            assert not model.training
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", PROBES)
def test_a_model_that_is_no_longer_a_number_is_an_error_of_one_line(name: str) -> None:
    data = Toy("causal")
    model = transformer(data)
    with torch.no_grad():
        model.layers[1].attention.qkv.weight += torch.nan
    with pytest.raises(FloatingPointError, match=r"probe must find finite .*") as caught:
        probe(name)(model, data, 0)
    assert "\n" not in str(caught.value)


def test_a_row_is_a_finite_number() -> None:
    assert make_row("r2", 0.5, 1) == {"layer": 1, "head": None, "metric": "r2", "value": 0.5}
    for value in (math.nan, math.inf):
        with pytest.raises(FloatingPointError, match="got r2="):
            make_row("r2", value)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROBES)
def test_a_model_on_a_gpu_gives_the_same_numbers(name: str) -> None:
    data = Toy("causal")
    model = transformer(data, "learnable")
    expected = probe(name)(model, data, 0)
    state = torch.cuda.get_rng_state()
    found = probe(name)(model.cuda(), data, 0)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    for one, other in zip(found, expected, strict=True):
        assert without_value(one) == without_value(other)
        assert one["value"] == pytest.approx(other["value"], rel=1e-2, abs=1e-3)


def without_value(one: ProbeRow) -> tuple[int | None, int | None, str]:
    return one["layer"], one["head"], one["metric"]
