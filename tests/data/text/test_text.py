"""Text as questions: windows of packed documents, causal and masked, in disjoint splits."""

import hashlib
import inspect
import math
import random
from itertools import pairwise
from pathlib import Path

import hydra
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from pe_lab.config import expand_overrides
from pe_lab.data.base import IGNORE, Batch, epoch_order
from pe_lab.data.seeding import initialise_parameters
from pe_lab.data.text.base import Text, packed_layout
from pe_lab.data.text.clm import CLM
from pe_lab.data.text.mlm import MLM
from pe_lab.data.text.token_streams import TokenStreams
from pe_lab.experiment.cell import Cell
from pe_lab.model import Transformer
from pe_lab.system.files import digest
from pe_lab.training.metrics import evaluate

SPLITS = ("train", "validation", "test")
TASKS = {"clm": CLM, "mlm": MLM}
END, MASK = 255, 254
LENGTH = 32


def prose(seed: int, words: int, most: int = 12) -> str:
    """Return text with few different words, so that it repeats itself."""
    draw = random.Random(seed)
    known = ["".join(draw.choice("aeiouklmné ") for _ in range(draw.randint(1, 9))) for _ in range(40)]
    lines = (" ".join(draw.choice(known) for _ in range(draw.randint(1, most))) for _ in range(words // 6))
    return "\n".join(lines)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a file of one document, a folder of short ones, a file whose lines are documents, and a cache."""
    made = tmp_path_factory.mktemp("text")
    (made / "file.txt").write_text(prose(1, 12_000))
    (made / "lines.txt").write_text(prose(3, 4_000, most=4))
    (made / "folder").mkdir()
    for number in range(400):
        (made / "folder" / f"{number}.txt").write_text(prose(1000 + number, 6 * (1 + number % 9)))
    return made


KINDS = {"file": {}, "lines": {"separator": "\n"}, "folder": {}}


def text(place: Path, task: str, kind: str = "folder", seed: int = 0, **options: object) -> Text:
    path = place / (kind if kind == "folder" else f"{kind}.txt")
    options = {"path": str(path), "cache": str(place / "cache"), "length": LENGTH} | KINDS[kind] | options
    return TASKS[task](seed, task, **options)


def whole_split(data: Text, split: str, epoch: int = 0) -> Batch:
    return data.batch(split, torch.arange(data.size(split)), epoch)


def windows(data: Text, split: str) -> list[bytes]:
    """Return the sequences as bytes, before tokens are hidden."""
    return [row[: data.windows[split].length].tobytes() for row in data.rows(split, np.arange(data.size(split)))]


def fingerprint(*tensors: Tensor) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().astype("<i8").tobytes() for tensor in tensors)).hexdigest()


every_task = pytest.mark.parametrize("task", TASKS)
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_task
def test_the_config_is_the_class_with_its_defaults(task: str, tmp_path: Path) -> None:
    cfg = expand_overrides([f"data={task}"], False)[0].data
    signature = inspect.signature(TASKS[task].__init__).parameters.values()
    defaults = {p.name: p.default for p in signature if p.name not in ("self", "seed", "name")}
    assert {key: value for key, value in OmegaConf.to_container(cfg).items() if key[0] != "_"} == defaults | {
        "name": task
    }
    cfg.cache = str(tmp_path)
    data = hydra.utils.instantiate(cfg)(seed=3)
    assert type(data) is TASKS[task]
    assert (data.name, data.seed, data.task.length, data.task.vocabulary, data.task.outputs) == (task, 3, 256, 256, 256)
    assert data.task.causal == (task == "clm")
    assert not list(tmp_path.iterdir())  # nothing is read until sequences are used


@every_kind
def test_no_held_out_sequence_is_anywhere_in_the_text_of_an_earlier_split(kind: str, place: Path) -> None:
    data = text(place, "clm", kind, length=16, test_sequences=None)
    before = b""
    left_out = 0
    for split in SPLITS:
        found = windows(data, split)
        left_out += (data.text.sizes[split] - 1) // 16 - len(found)
        assert not [window for window in found if before and before.find(window) >= 0]
        before += data.text.stream(split).tobytes()
    assert left_out > 0 or kind == "folder"  # the rule applied to some


@pytest.mark.parametrize(("corpus", "least"), [("tinyshakespeare", 3_900), ("stdlib", 20_000)])
def test_no_held_out_sequence_of_a_named_text_is_in_its_training_text(corpus: str, least: int, place: Path) -> None:
    data = CLM(0, "clm", corpus=corpus, cache=str(place / "cache"))
    assert data.size("train") > least
    assert min(data.size("validation"), data.size("test")) > 200
    train = data.text.stream("train").tobytes()
    for split in SPLITS[1:]:
        assert not [window for window in windows(data, split) if train.find(window) >= 0]


@pytest.mark.parametrize("length", [128, 256, 512, 1024])
@pytest.mark.parametrize("factor", [1, 2, 4])
def test_the_default_text_asks_50_000_bytes_of_each_held_out_split(length: int, factor: int, place: Path) -> None:
    data = CLM(0, "clm", length=length, test_sequences=None, cache=str(place / "cache"))
    longer = data.longer(factor)
    assert data.size("train") * length > 1_000_000
    for split in SPLITS[1:]:
        assert longer.size(split) * factor * length > 50_000


def test_the_default_text_is_cut_at_90_and_95_percent(place: Path) -> None:
    data = CLM(0, "clm", cache=str(place / "cache"))
    parts = [data.text.stream(split).tobytes() for split in SPLITS]
    assert b"".join(parts) == data.text.corpus.files[0].read_bytes() + bytes([END])
    assert [len(part) for part in parts] == [1_003_854, 55_770, 55_771]


@every_task
def test_the_split_does_not_depend_on_the_seed_and_the_order_does(task: str, place: Path) -> None:
    first, second = text(place, task), text(place, task, seed=1)
    for split in SPLITS:
        assert windows(first, split) == windows(second, split)
    assert not torch.equal(epoch_order(first.size("train"), 0, 0), epoch_order(first.size("train"), 1, 0))


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("clm", "119cf04165d8607aab62d763a457eef022bee2303cea4a3bad64a2fbe960251f"),
        ("mlm", "680081a62967aaf5ae0d457c21ae6f4fce398fcb640f4d88764ef933c96e4c36"),
    ],
)
def test_the_sequences_are_the_same_in_every_process_and_on_every_machine(
    task: str, expected: str, place: Path
) -> None:
    data = text(place, task, seed=5)
    parts = [whole_split(data, split, epoch=2) for split in SPLITS]
    assert fingerprint(*(tensor for part in parts for tensor in (part.tokens, part.targets))) == expected


@every_task
def test_the_sequences_do_not_depend_on_the_global_generators(task: str, place: Path) -> None:
    data, state = text(place, task), torch.random.get_rng_state()
    np.random.seed(1)
    first = whole_split(data, "train")
    np.random.seed(2)
    torch.manual_seed(3)
    second = whole_split(text(place, task), "train")
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.targets, second.targets)
    torch.random.set_rng_state(state)
    whole_split(data, "test")
    assert torch.equal(torch.random.get_rng_state(), state)


@every_task
@every_kind
def test_a_batch_is_the_rows_that_were_asked_for(task: str, kind: str, place: Path) -> None:
    data = text(place, task, kind)
    for split in SPLITS:
        everything = whole_split(data, split, epoch=3)
        index = torch.tensor([5, 2, 2, data.size(split) - 1])
        batch = data.batch(split, index, epoch=3)
        for name in ("tokens", "targets", "role", "headline"):
            assert torch.equal(getattr(batch, name), getattr(everything, name)[index]), name
        for name in ("pos", "segment"):
            assert torch.equal(getattr(batch.layout, name), getattr(everything.layout, name)[index]), name
        assert batch.layout.causal == (task == "clm")
        assert torch.equal(batch.headline, batch.targets != IGNORE)


@every_kind
def test_windows_follow_each_other_and_each_token_is_in_one(kind: str, place: Path) -> None:
    data = text(place, "mlm", kind)
    stream = data.text.stream("train").tobytes()
    assert b"".join(windows(data, "train")) == stream[: len(stream) // LENGTH * LENGTH]


@every_task
@pytest.mark.parametrize("cap", [1, 7, 50])
def test_a_cap_takes_sequences_evenly(task: str, cap: int, place: Path) -> None:
    everything = text(place, task, "file", test_sequences=None)
    some = text(place, task, "file", train_sequences=cap, test_sequences=2 * cap)
    for split, number in (("train", cap), ("validation", 2 * cap), ("test", 2 * cap)):
        assert some.size(split) == number
        order = {window: place for place, window in reversed(list(enumerate(windows(everything, split))))}
        chosen = [order[window] for window in windows(some, split)]
        step = everything.size(split) / number
        assert all(abs(at - n * step) <= 1 for n, at in enumerate(chosen))


@every_task
@every_kind
def test_documents_in_a_window_are_segments_and_positions_start_again(task: str, kind: str, place: Path) -> None:
    data = text(place, task, kind)
    several = 0
    for split in SPLITS:
        batch = whole_split(data, split)
        for row, segment, pos in zip(
            windows(data, split), batch.layout.segment.tolist(), batch.layout.pos.tolist(), strict=True
        ):
            document = start = 0
            for slot, token in enumerate(row):
                assert (segment[slot], pos[slot]) == (document, slot - start)
                if token == END:
                    document, start = document + 1, slot + 1
            several += len(set(segment)) > 1
        assert batch.layout.segment.shape == (len(batch), LENGTH)
    assert (several > 0) == (kind != "file")


def test_the_window_of_the_docstring(tmp_path: Path) -> None:
    tokens = torch.tensor([[*b"at", END, *b"dog!", END]])
    layout = packed_layout(tokens == END, True)
    assert layout.pos.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]
    assert layout.segment.tolist() == [[0, 0, 0, 1, 1, 1, 1, 1]]


@every_kind
def test_clm_asks_for_every_token_once_but_the_first_of_a_document(kind: str, place: Path) -> None:
    data = text(place, "clm", kind)
    batch, stream = whole_split(data, "train"), data.text.stream("train").tolist()
    rows = len(batch)
    assert batch.tokens.flatten().tolist() == stream[: rows * LENGTH]
    following = [IGNORE if now == END else after for now, after in pairwise(stream)]
    assert batch.targets.flatten().tolist() == following[: rows * LENGTH]
    asked = batch.targets != IGNORE
    assert torch.equal((batch.role == 1) & asked, batch.targets == END)


def test_mlm_hides_15_percent_of_the_tokens_80_10_10(place: Path) -> None:
    """Counts lie in the central 1 - 1e-6 of their binomial distributions, normal at these sizes."""
    data = text(place, "mlm", "lines")
    split = "train"
    original = torch.from_numpy(data.rows(split, np.arange(data.size(split))).astype(np.int64))
    candidates = chosen = masked = changed = 0
    replaced: list[int] = []
    for epoch in range(8):
        batch = whole_split(data, split, epoch)
        asked = batch.targets != IGNORE
        assert torch.equal(batch.targets[asked], original[asked])
        assert torch.equal(batch.tokens[~asked], original[~asked])
        assert not (asked & (original == END)).any()
        assert (batch.tokens[asked & (batch.role == 0)] == MASK).all()
        assert torch.equal(batch.tokens[asked & (batch.role == 2)], original[asked & (batch.role == 2)])
        candidates += (original != END).sum().item()
        chosen += asked.sum().item()
        masked += (asked & (batch.role == 0)).sum().item()
        changed += (asked & (batch.role == 1)).sum().item()
        replaced += batch.tokens[asked & (batch.role == 1)].tolist()
    assert candidates > 50_000
    within(chosen, candidates, 0.15)
    within(masked, chosen, 0.8)
    within(changed, chosen, 0.1)
    used = sorted(set(original.flatten().tolist()) - {END})
    assert set(replaced) <= set(data.text.used_tokens) == set(used)
    for token in used:
        within(replaced.count(token), len(replaced), 1 / len(used))


def within(count: int, trials: int, probability: float) -> None:
    assert abs(count - trials * probability) <= 4.9 * math.sqrt(trials * probability * (1 - probability)) + 0.5


def test_slots_are_hidden_alike_wherever_they_are_in_the_window(place: Path) -> None:
    data = text(place, "mlm", "file")
    asked = torch.stack([whole_split(data, "train", epoch).targets != IGNORE for epoch in range(6)]).flatten(0, 1)
    for slot in range(LENGTH):
        within(asked[:, slot].sum().item(), len(asked), 0.15)
    together = (asked[:, 1:] & asked[:, :-1]).sum().item()
    within(together, asked[:, 1:].numel(), 0.15**2)


@pytest.mark.parametrize("length", [2, 3, 5])
def test_a_short_window_is_asked_something_too(length: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TokenStreams, "repeats", lambda *_: np.zeros(0, np.int64))  # nothing so short is new
    for task in TASKS:
        data = text(place, task, "lines", length=length, test_sequences=None, train_sequences=3000)
        asked = whole_split(data, "train").targets != IGNORE
        assert asked.any(1).all()


def test_what_mlm_asks_is_a_function_of_seed_epoch_and_sequence_in_training(place: Path) -> None:
    def hidden(seed: int, epoch: int) -> Tensor:
        return whole_split(text(place, "mlm", seed=seed), "train", epoch).tokens

    assert torch.equal(hidden(0, 0), hidden(0, 0))
    different = [hidden(0, 0), hidden(0, 1), hidden(1, 0), hidden(1, 1)]
    assert len({fingerprint(tokens) for tokens in different}) == 4
    # equal text in two windows is not hidden alike
    asked = whole_split(text(place, "mlm"), "train").targets != IGNORE
    assert len({tuple(row) for row in asked.tolist()}) > 0.9 * len(asked)


@pytest.mark.parametrize("split", SPLITS[1:])
def test_what_mlm_asks_in_validation_and_test_does_not_depend_on_the_epoch(split: str, place: Path) -> None:
    data = text(place, "mlm")
    assert torch.equal(whole_split(data, split, 0).tokens, whole_split(data, split, 7).tokens)
    assert not torch.equal(whole_split(data, split).tokens, whole_split(text(place, "mlm", seed=1), split).tokens)


def test_each_split_has_masks_of_its_own(place: Path) -> None:
    data = text(place, "mlm", "file")  # one document: no END shows where one is
    first = torch.arange(20)
    asked = [data.batch(split, first).targets != IGNORE for split in SPLITS]
    assert not any(torch.equal(asked[a], asked[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_what_is_hidden_does_not_depend_on_the_batch(place: Path) -> None:
    data = text(place, "mlm")
    everything = whole_split(data, "train", 4)
    for index in (torch.tensor([9]), torch.tensor([9, 3]), torch.tensor([50, 9, 3, 11])):
        batch = data.batch("train", index, 4)
        assert torch.equal(batch.tokens, everything.tokens[index])
        assert torch.equal(batch.targets, everything.targets[index])


@every_task
@pytest.mark.parametrize("pe", ["rope", "learnable", "alibi", "t5", "none", "sinusoidal", "cpe", "shaw"])
def test_a_packed_documents_logits_do_not_change_when_its_neighbour_changes(task: str, pe: str, place: Path) -> None:
    data = text(place, task, "lines")
    cfg = expand_overrides([f"pe={pe}", "model.depth=2", "model.width=16", "model.num_heads=2"], False)[0]
    model = Transformer(cfg.model, hydra.utils.instantiate(cfg.pe), data.task)
    initialise_parameters(model, 0)
    model.eval()
    batch = whole_split(data, "train")
    row = next(n for n, segment in enumerate(batch.layout.segment) if segment.max() >= 3 and (segment == 1).sum() > 4)
    batch = batch[torch.tensor([row])]
    own = batch.layout.segment == 1
    with torch.no_grad():
        before = model(batch.tokens, batch.layout)
        changed = batch.tokens.where(own, (batch.tokens + 1) % 100)
        after = model(changed, batch.layout)
        alone = batch.tokens[own][None]
        layout = packed_layout(torch.zeros_like(alone, dtype=torch.bool), data.task.causal)
        by_itself = model(alone, layout)
    assert torch.equal(after[own], before[own])
    assert not torch.allclose(after[~own], before[~own])
    # and they are those of the document in a window of its own
    torch.testing.assert_close(by_itself[0], before[own], rtol=1e-4, atol=1e-5)


@every_task
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_bits_per_byte_of_a_uniform_guess(task: str, tokenizer: str, place: Path) -> None:
    data = text(place, task, "lines", tokenizer=tokenizer, vocabulary_size=300)
    batch = whole_split(data, "test")
    asked = batch.targets != IGNORE
    losses = torch.zeros(batch.targets.shape)
    losses[asked] = math.log(300)
    answers = batch.targets[asked].tolist()
    spelled = b"".join(data.text.spelling[token] for token in answers)
    expected = len(answers) * math.log2(300) / len(spelled)
    assert data.metrics(losses, batch)["bits_per_byte"] == pytest.approx(expected, rel=1e-6)
    assert (len(spelled) > len(answers)) == (tokenizer == "bpe")


def test_bits_per_byte_compares_tokenizers(place: Path) -> None:
    """A predictor with 3 bits per byte has 3 bits times the bytes of a token."""
    found = []
    for tokenizer in ("bytes", "bpe"):
        data = text(place, "clm", "lines", tokenizer=tokenizer, vocabulary_size=300)
        batch = whole_split(data, "test")
        asked = batch.targets != IGNORE
        losses = torch.zeros(batch.targets.shape)
        losses[asked] = torch.tensor(
            [3 * math.log(2) * len(data.text.spelling[t]) for t in batch.targets[asked].tolist()]
        )
        found.append(data.metrics(losses, batch)["bits_per_byte"])
    assert found == pytest.approx([3, 3], rel=1e-6)


@every_task
def test_a_model_is_evaluated_in_bits_per_byte(task: str, place: Path) -> None:
    data = text(place, task, "lines", test_sequences=9)
    cfg = expand_overrides(["model.depth=1", "model.width=16", "model.num_heads=2"], False)[0]
    model = Transformer(cfg.model, hydra.utils.instantiate(cfg.pe), data.task)
    metrics = evaluate(model, data, "test", torch.autocast("cpu", enabled=False))
    assert metrics["bits_per_byte"] == pytest.approx(metrics["loss"] / math.log(2))
    assert metrics["loss"] == metrics["loss_all"]
    assert {f"loss_{role}" for role in data.roles} <= metrics.keys()


@every_task
@every_kind
@pytest.mark.parametrize("factor", [2, 4, 2.5])
def test_longer_windows_are_of_the_same_held_out_text(task: str, kind: str, factor: float, place: Path) -> None:
    data = text(place, task, kind, test_sequences=20)
    before = windows(data, "test")
    longer = data.longer(factor)
    length = round(factor * LENGTH)
    assert longer.task.length == length
    assert 1 <= longer.size("test") <= 20 / factor
    batch = whole_split(longer, "test")
    assert batch.tokens.shape == (longer.size("test"), length)
    assert batch.layout.causal == data.task.causal
    held_out = data.text.stream("test").tobytes()
    assert all(held_out.find(window) % length == 0 for window in windows(longer, "test"))
    # the dataset it was made of is as before
    assert (data.task.length, windows(data, "test")) == (LENGTH, before)
    # a model for one is a model for the other
    assert (longer.task.vocabulary, longer.task.outputs) == (data.task.vocabulary, data.task.outputs)


@every_kind
@pytest.mark.parametrize("factor", [2, 3])
def test_no_sequence_of_training_is_in_a_longer_window(kind: str, factor: int, place: Path) -> None:
    data = text(place, "clm", kind, length=16, test_sequences=None)
    longer = data.longer(factor)
    train, room = windows(data, "train"), (data.text.sizes["test"] - 1) // (16 * factor)
    for window in windows(longer, "test"):
        assert not [sequence for sequence in train if sequence in window]
    assert longer.size("test") < room or kind == "folder"  # the rule applied to some


def test_a_test_text_that_is_too_short_for_longer_windows_is_refused(place: Path) -> None:
    data = text(place, "clm")
    with pytest.raises(
        ValueError, match=r"^evaluate\.lengths=1000 must leave a sequence .* got none of 32000 tokens"
    ) as caught:
        data.longer(1000)
    assert "\n" not in str(caught.value)


@every_task
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("corpus", "wikipedia"),
        ("path", ""),
        ("path", 3),
        ("separator", ""),
        ("tokenizer", "words"),
        ("vocabulary_size", 258),
        ("vocabulary_size", 2**20 + 1),
        ("vocabulary_size", 300.5),
        ("length", 1),
        ("length", 0),
        ("length", 8.5),
        ("train_sequences", 0),
        ("test_sequences", -1),
        ("cache", ""),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_read(task: str, option: str, value: object, place: Path) -> None:
    with pytest.raises(ValueError, match=rf"^{option} must be .*got {value!r}") as caught:
        text(place, task, **{option: value})
    assert "\n" not in str(caught.value)


@every_task
@pytest.mark.parametrize("characters", [1, 2, 40, 300, 700])
def test_a_text_shorter_than_a_sequence_in_every_split_is_refused(task: str, characters: int, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text(prose(0, 700)[:characters])
    data = TASKS[task](0, task, path=str(tmp_path / "file.txt"), cache=str(tmp_path / "cache"), length=64)
    with pytest.raises(
        ValueError, match=r"^data\.length=64 must leave a sequence in every split of data\.path="
    ) as caught:
        data.size("train")
    assert "\n" not in str(caught.value)


def test_a_text_that_only_repeats_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("again and " * 1000)
    data = CLM(0, "clm", path=str(tmp_path / "file.txt"), cache=str(tmp_path / "cache"), length=64)
    with pytest.raises(ValueError, match=r"^data\.length=64 must leave .* all known from the splits before$"):
        data.size("train")


def cell(place: Path, *overrides: str) -> Cell:
    fixed = [f"data.cache={place}/cache", f"data.length={LENGTH}", f"ledger={place}/ledger", "trainer.batch_size=4"]
    return Cell.from_config(expand_overrides(["data=clm", *fixed, *overrides], False)[0])


def test_a_cell_is_known_by_the_text_not_by_where_it_is(place: Path, tmp_path: Path) -> None:
    def run(*overrides: str) -> str:
        return digest(cell(place, *overrides).identity)

    first = run(f"data.path={place}/lines.txt", "data.separator=k")
    (tmp_path / "moved.txt").write_bytes((place / "lines.txt").read_bytes())
    moved = f"data.path={tmp_path}/moved.txt"
    assert run(moved, "data.separator=k") == first
    assert run(moved, "data.separator=k", f"data.cache={tmp_path}/cache") == first
    assert run(moved, "data.separator=k", "data.corpus=enwik8") == first
    assert run(moved, "data.separator=k", "data.vocabulary_size=999") == first  # there is none to learn
    identity = str(cell(place, moved, "data.separator=k").identity)
    assert str(tmp_path) not in identity
    assert str(place) not in identity
    other = [
        run(moved, "data.separator=l"),
        run(f"data.path={place}/file.txt", "data.separator=k"),
        run(moved, "data.separator=k", "data.train_sequences=20"),
        run(moved, "data.separator=k", "data.test_sequences=20"),
        run(moved, "data.separator=k", "data.tokenizer=bpe", "data.vocabulary_size=300"),
        run(moved, "data.separator=k", "data.tokenizer=bpe", "data.vocabulary_size=301"),
        run(moved, "data.separator=k", "data=mlm"),
    ]
    assert len({first, *other}) == 8


def test_a_text_that_is_wrong_is_refused_when_the_cell_is_made(place: Path, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\0" * 5000)
    with pytest.raises(ValueError, match=r"^data\.path must be text in UTF-8, .*, got .*binary with NUL"):
        cell(place, f"data.path={tmp_path}/binary")


@every_kind
@pytest.mark.parametrize("stride", [1, 5, LENGTH])
@pytest.mark.parametrize("factor", [1, 2])
def test_strided_windows_ask_for_every_token_once_with_a_long_context(
    kind: str, stride: int, factor: int, place: Path
) -> None:
    data = text(place, "clm", kind, test_sequences=None)
    data = data if factor == 1 else data.longer(factor)
    strided, length = data.strided(stride), data.task.length
    found = strided.batch("test", torch.arange(strided.size("test")))
    stream = data.text.stream("test").astype(int)
    begins = strided.windows["test"].starts
    assert set(np.diff(begins)) >= {stride}
    assert not (begins % stride).any()
    asked = [
        (begin + slot + 1, target)
        for begin, targets in zip(begins.tolist(), found.targets.tolist(), strict=True)
        for slot, target in enumerate(targets)
        if target != IGNORE
    ]
    places = [number for number, _ in asked]
    assert len(set(places)) == len(places)
    assert [target for _, target in asked] == stream[places].tolist()
    expected = [
        begin + slot + 1
        for begin in begins.tolist()
        for slot in range(length - stride, length)
        if stream[begin + slot] != data.text.end
    ]
    assert places == expected
    # a window as long as its stride is the window without one
    if stride == length:
        same = data.batch("test", torch.arange(data.size("test")))
        assert torch.equal(same.tokens, found.tokens)
        assert torch.equal(same.targets, found.targets)
    # training, and the dataset it was made of, are as before
    index = torch.arange(4)
    assert torch.equal(strided.batch("train", index).targets, data.batch("train", index).targets)
    assert data.stride is None


def test_about_as_many_tokens_are_asked_with_a_stride(place: Path) -> None:
    data = text(place, "clm", "file", test_sequences=8)
    strided = data.strided(LENGTH // 4)
    assert strided.size("test") == 8 * 4
    counts = [int((whole_split(one, "test").targets != IGNORE).sum()) for one in (data, strided)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("task", "stride"), [("clm", 0), ("clm", LENGTH + 1), ("mlm", 4)])
def test_a_stride_that_cannot_be_is_refused(task: str, stride: int, place: Path) -> None:
    with pytest.raises(ValueError, match=r"^evaluate\.stride must be .*, got \d+$") as caught:
        text(place, task).strided(stride)
    assert "\n" not in str(caught.value)
