"""No sequence is in two splits, a user's file is read exactly or refused by name, and levels are right."""

import hashlib
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Generator, Tensor

from pe_lab.config import expand_overrides
from pe_lab.data.base import Task
from pe_lab.data.labelled import Labelled, SampledLabelled, class_metrics, uniform_log_p
from pe_lab.data.pattern import Pattern
from pe_lab.encodings.layout import PADDING
from pe_lab.experiment.cell import Cell
from pe_lab.model import Transformer

HEADER = "split,tokens,label"
ROWS = ["train,1 2 3,0", "train,4 5,1", "train,1 2 3 4,2", "validation,0 0 0,2", "test,19,1", "demo,7 7,0"]


def csv(folder: Path, *lines: str) -> str:
    file = folder / "own.csv"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def refusal(folder: Path, *lines: str, **options: int) -> str:
    """Return the error for a file with these lines: one line, without the file's name."""
    path = csv(folder, *lines)
    with pytest.raises(ValueError, match=r"^(data\.)?path must") as caught:
        Pattern(0, path=path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert path in message
    return message.replace(path, "FILE")


class Few(SampledLabelled):
    """The 27 sequences of three tokens out of 0, 1, 2, some of them much more likely than others."""

    purpose = "few"

    def __init__(self, seed: int, **sizes: int) -> None:
        super().__init__(seed, "few", Task(3, 3, 3, causal=False, pooled=True), sizes)

    def draw(self, number: int, random: Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(9, (number, 3), generator=random).sub(6).clamp(min=0)
        return tokens, tokens[:, 0]

    def classify(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0]

    def position_blind(self, tokens: Tensor) -> Tensor:
        return uniform_log_p(len(tokens), self.task.outputs)


def rows(data: Labelled, split: str) -> list[tuple[int, ...]]:
    return [tuple(row) for row in data.whole(split).tokens.tolist()]


@pytest.mark.parametrize("seed", range(5))
def test_no_sequence_is_in_two_splits_even_if_all_sequences_there_are_are_used(seed: int) -> None:
    data = Few(seed, train=12, validation=8, test=5, demo=2)
    drawn = [row for split in data.splits for row in rows(data, split)]
    assert len(drawn) == 27
    assert len(set(drawn)) == 27
    assert [len(rows(data, split)) for split in ("train", "validation", "test", "demo")] == [12, 8, 5, 2]


def test_the_splits_are_the_same_in_whichever_order_they_are_asked_for() -> None:
    sizes = {"train": 12, "validation": 8, "test": 5, "demo": 2}
    forth, back = Few(3, **sizes), Few(3, **sizes)
    there = {split: rows(forth, split) for split in sizes}
    assert {split: rows(back, split) for split in reversed(sizes)} == there


def test_a_larger_split_begins_with_the_smaller_one_and_the_test_split_stays() -> None:
    small, large = Pattern(0, train=100), Pattern(0, train=6000)
    assert rows(large, "train")[:100] == rows(small, "train")
    for split in ("test", "validation"):
        assert rows(large, split) == rows(small, split)


def test_a_batch_asks_once_for_the_class_and_always_in_the_headline() -> None:
    data = Pattern(0)
    batch = data.batch("train", torch.tensor([7, 7, 2]))
    assert batch.targets.shape == batch.role.shape == batch.headline.shape == (3, 1)
    assert torch.equal(batch.targets, data.whole("train").targets[[7, 7, 2]])
    assert torch.equal(batch.tokens, data.whole("train").tokens[[7, 7, 2]])
    assert not batch.role.any()
    assert batch.headline.all()
    assert data.roles == ("label",)
    assert not batch.layout.causal
    assert (batch.layout.segment != PADDING).sum(1).tolist() == [32] * 3


def test_splits_that_are_not_used_are_not_made() -> None:
    """A sweep makes hundreds of datasets."""
    assert Pattern(0, train=10**9).size("train") == 10**9


def test_a_file_is_read_row_by_row_with_its_padding_known_by_length(tmp_path: Path) -> None:
    data = Pattern(0, path=csv(tmp_path, HEADER, *ROWS))
    assert data.splits == ("train", "validation", "test", "demo")
    assert [data.size(split) for split in data.splits] == [3, 1, 1, 1]
    batch = data.whole("train")
    assert batch.tokens.shape == (3, 32)
    assert batch.targets.tolist() == [[0], [1], [2]]
    for row, segment, tokens in zip(batch.tokens, batch.layout.segment, ([1, 2, 3], [4, 5], [1, 2, 3, 4]), strict=True):
        assert row[: len(tokens)].tolist() == tokens
        assert (segment == PADDING).tolist() == [False] * len(tokens) + [True] * (32 - len(tokens))
    zeros = data.whole("validation")
    assert (zeros.layout.segment != PADDING).sum() == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\n\n").replace("4 5", " 4  5 "),
        lambda text: text.replace("1 2 3,", '"1 2 3",').replace("split", '"split"'),
        lambda text: text.rstrip("\n"),
    ],
    ids=["windows", "old_mac", "byte_order_mark", "blank_lines_and_spaces", "quoted", "no_last_newline"],
)
def test_files_as_other_programs_write_them_are_read_alike(tmp_path: Path, change) -> None:
    plain = Pattern(0, path=csv(tmp_path, HEADER, *ROWS))
    other = tmp_path / "other.csv"
    other.write_bytes(change("\n".join([HEADER, *ROWS]) + "\n").encode())
    read = Pattern(0, path=str(other))
    for split in plain.splits:
        assert torch.equal(read.whole(split).tokens, plain.whole(split).tokens)
        assert torch.equal(read.whole(split).targets, plain.whole(split).targets)
        assert torch.equal(read.whole(split).layout.segment, plain.whole(split).layout.segment)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("val,1 2,0", "split 'val' is not one of train, validation, test, demo"),
        ("train,1 2", "2 fields instead of 3"),
        ("train,1 2,0,0", "4 fields instead of 3"),
        ("train,,0", "no tokens"),
        ("train,1 20,0", "token '20' is not in 0 ... 19"),
        ("train,1 -2,0", "token '-2' is not in 0 ... 19"),
        ("train,1 x,0", "token 'x' is not in 0 ... 19"),
        ("train,1 2.0,0", "token '2.0' is not in 0 ... 19"),
        ("train,1;2,0", "token '1;2' is not in 0 ... 19"),
        ("train,1 2,3", "label '3' is not in 0 ... 2"),
        ("train,1 2,", "label '' is not in 0 ... 2"),
        ("train,1 2,a", "label 'a' is not in 0 ... 2"),
        (f"train,{'1 ' * 33},0", "33 tokens, more than data.length=32"),
        ("test,4 5,1", "its sequence is in train too, in row 3"),
        ("demo,0 0 0,1", "its sequence is in validation too, in row 5"),
        ('train,"1 2,0', "unexpected end of data"),
    ],
)
def test_a_malformed_row_is_named_with_its_reason(tmp_path: Path, row: str, reason: str) -> None:
    assert refusal(tmp_path, HEADER, *ROWS, row) == (
        f"data.path must have rows of split,tokens,label, got 1 malformed in FILE: row 8: {reason}"
    )


def test_every_malformed_row_is_named_and_the_rest_is_counted(tmp_path: Path) -> None:
    bad = ["train,99,0", "nowhere,1,0", "train,5 5 5,9"]
    assert refusal(tmp_path, HEADER, bad[0], *ROWS, bad[1], bad[2]) == (
        "data.path must have rows of split,tokens,label, got 3 malformed in FILE: row 2: token '99' is not in "
        "0 ... 19; row 9: split 'nowhere' is not one of train, validation, test, demo; row 10: label '9' is not in 0 "
        "... 2"
    )
    many = refusal(tmp_path, HEADER, *ROWS, *["train,99,0"] * 25)
    assert "got 25 malformed in FILE" in many
    assert [f"row {number}:" in many for number in (8, 27, 28)] == [True, True, False]
    assert many.endswith("; and 5 more")
    assert refusal(tmp_path, HEADER, *ROWS, *["train,99,0"] * 20).endswith("row 27: token '99' is not in 0 ... 19")


def test_a_value_that_does_not_end_is_shortened(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, HEADER, *ROWS, f"train,{'9' * 5000},0")) < 200
    assert len(refusal(tmp_path, "x" * 5000)) < 200
    assert len(refusal(tmp_path, HEADER, f"train,{'1 ' * 100_000},0")) < 200


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "data.path must have the columns split,tokens,label, got FILE, which is empty"),
        (("", ""), "data.path must have the columns split,tokens,label, got FILE, which is empty"),
        (
            ("split,text,label", *ROWS),
            "data.path must have the columns split,tokens,label, got 'split,text,label' in FILE",
        ),
        (("split,tokens", *ROWS), "data.path must have the columns split,tokens,label, got 'split,tokens' in FILE"),
        (tuple(ROWS), "data.path must have the columns split,tokens,label, got 'train,1 2 3,0' in FILE"),
        (('"split', *ROWS), "data.path must have the columns split,tokens,label, got '\"split' in FILE"),
        ((HEADER,), "data.path must have rows of train, validation and test, got none of train in FILE"),
        (
            (HEADER, *ROWS[:4], ROWS[5]),
            "data.path must have rows of train, validation and test, got none of test in FILE",
        ),
    ],
)
def test_a_file_of_another_form_is_refused_in_one_line(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    assert refusal(tmp_path, *lines) == message


def test_what_is_no_file_of_text_is_refused_in_one_line(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"split,tokens,label\n\xff\xfe")
    for path, message in (
        (str(binary), f"data.path must be text in UTF-8, got {binary}, whose byte 19 is not"),
        (str(tmp_path), f"data.path must be a file to read, got {str(tmp_path)!r} (Is a directory)"),
        ("nowhere.csv", "data.path must be a file to read, got 'nowhere.csv' (No such file or directory)"),
        ("", "path must be the path of a file or folder, got ''"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            Pattern(0, path=path)


def test_a_size_beside_a_file_is_refused(tmp_path: Path) -> None:
    message = refusal_of(lambda: Pattern(0, train=100, path=csv(tmp_path, HEADER, *ROWS)))
    assert message == "train must be left at 5000 with path, whose rows name their splits, got 100"


def refusal_of(make) -> str:
    with pytest.raises(ValueError, match=r"^\S+ must be ") as caught:
        make()
    return str(caught.value)


def test_a_file_has_one_length(tmp_path: Path) -> None:
    data = Pattern(0, path=csv(tmp_path, HEADER, *ROWS))
    assert refusal_of(lambda: data.longer(2)).startswith("evaluate.lengths must be 1 ")


def test_a_file_is_known_by_its_content_not_by_its_path(tmp_path: Path) -> None:
    def identity(folder: str, last: str) -> dict:
        (tmp_path / folder).mkdir(exist_ok=True)
        path = csv(tmp_path / folder, HEADER, *ROWS, last)
        overrides = ["data=pattern", f"data.path={path}", "trainer.batch_size=2", f"ledger={tmp_path}"]
        return Cell.from_config(expand_overrides(overrides, False)[0]).identity["data"]

    here = identity("here", "demo,8,0")
    assert here == identity("there", "demo,8,0")
    assert here != identity("there", "demo,8,1")
    assert here["path"] == hashlib.sha256((tmp_path / "here" / "own.csv").read_bytes()).hexdigest()
    assert Pattern(0).content() == {}


def test_scores_are_those_of_the_probabilities_with_ties_shared() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [0.4, 0.4, 0.2], [0.4, 0.4, 0.2], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    found = class_metrics(p.log(), torch.tensor([0, 1, 2, 0]))
    assert found["loss"] == pytest.approx(-(math.log(0.5) + math.log(0.4) + math.log(0.2) + math.log(1 / 3)) / 4)
    assert found["accuracy"] == pytest.approx((1 + 1 / 2 + 0 + 1 / 3) / 4)
    assert found["loss"] == found["loss_all"] == found["loss_label"]
    assert found["accuracy"] == found["accuracy_all"] == found["exact_match"]


def test_reference_levels_see_the_tokens_without_order_and_training_only(tmp_path: Path) -> None:
    """The class is the first token, which a histogram of two tokens determines only partly."""
    lines = [f"train,{a} {b},{a}" for a in range(3) for b in range(3) for _ in range(100)]
    alone = [f"validation,{a} {a} {a},{a}" for a in range(3)]
    mixed = ["test,0 1 3,0", "test,1 0 3,1", "test,0 2 3,0", "test,2 0 3,2", "test,1 2 3,1", "test,2 1 3,2"]
    data = Pattern(0, path=csv(tmp_path, HEADER, *lines, *alone, *mixed))
    assert data.floors("test").keys() == {"prior", "histogram"}
    assert data.floors("test")["prior"]["loss"] == pytest.approx(math.log(3))
    assert data.floors("test")["prior"]["accuracy"] == pytest.approx(1 / 3)
    assert data.floors("validation")["histogram"]["accuracy"] == 1
    assert data.floors("validation")["histogram"]["loss"] < 0.1
    # two orders of the same tokens, one of each class
    assert data.floors("test")["histogram"]["accuracy"] == pytest.approx(1 / 2, abs=0.2)
    assert data.floors("test")["histogram"]["loss"] == pytest.approx(math.log(2), abs=0.1)


def test_a_class_that_training_lacks_is_no_infinite_surprise(tmp_path: Path) -> None:
    data = Pattern(0, path=csv(tmp_path, HEADER, "train,1,0", "train,2,1", "validation,3,2", "test,4,2"))
    floors = data.floors("test")
    assert floors["prior"]["loss"] == pytest.approx(math.log(5))  # 1 of 2 + 3
    assert math.isfinite(floors["histogram"]["loss"])


def test_a_class_between_others_may_be_missing_in_training(tmp_path: Path) -> None:
    rows = [f"train,{token} {token} {other},{label}" for label, token in ((0, 4), (2, 7)) for other in range(3)]
    data = Pattern(0, path=csv(tmp_path, HEADER, *rows, "validation,4 4 4,0", "test,7 7 7,2"))
    assert data.floors("test")["histogram"]["accuracy"] == data.floors("validation")["histogram"]["accuracy"] == 1


def test_one_class_in_training_leaves_the_prior(tmp_path: Path) -> None:
    data = Pattern(0, path=csv(tmp_path, HEADER, "train,1,0", "train,2,0", "validation,3,2", "test,4,0"))
    assert data.floors("test")["histogram"] == data.floors("test")["prior"]
    assert data.floors("test")["prior"]["loss"] == pytest.approx(-math.log(3 / 5))


def test_padding_is_no_token_of_the_histogram(tmp_path: Path) -> None:
    """Compare with a classifier of counts from independent code, on rows of many lengths."""
    random = np.random.default_rng(0)
    rows = [random.integers(0, 4, random.integers(1, 30)).tolist() for _ in range(80)]
    labels = [int(row.count(0) > 2) for row in rows]
    splits = ["train"] * 50 + ["validation"] + ["test"] * 29
    lines = [
        f"{split},{' '.join(map(str, row))},{label}" for split, row, label in zip(splits, rows, labels, strict=True)
    ]
    levels = Pattern(0, path=csv(tmp_path, HEADER, *lines)).floors("test")

    often = np.array([[row.count(token) for token in range(4)] for row in rows])
    often = (often - often[:50].mean(0)) / often[:50].std(0)
    model = LogisticRegression(max_iter=10_000).fit(often[:50], labels[:50])
    p = (50 * model.predict_proba(often[51:])[range(29), labels[51:]] + 1) / (50 + 3)
    assert levels["histogram"]["loss"] == pytest.approx(-np.log(p).mean(), rel=1e-4)


@pytest.mark.parametrize("name", ["pattern", "pattern_hard", "bag", "digits"])
def test_a_model_answers_once_per_sequence_and_does_not_see_padding(name: str, tmp_path: Path) -> None:
    path = csv(tmp_path, HEADER, *ROWS) if name == "pattern" else "null"
    cell = Cell.from_config(
        expand_overrides(
            [
                f"data={name}",
                "pe=sinusoidal",
                f"ledger={tmp_path}",
                "model.depth=1",
                "trainer.batch_size=1",
                f"data.path={path}",
            ],
            False,
        )[0]
    )
    model = Transformer(cell.cfg.model, cell.encoding, cell.dataset.task, cell.implementation).eval()
    batch = cell.dataset.batch("train", torch.arange(2))
    with torch.no_grad():
        logits = model(batch.tokens, batch.layout)
        padding = batch.layout.segment == PADDING
        assert torch.equal(logits, model(batch.tokens.where(~padding, 9), batch.layout))
    assert logits.shape == (2, 1, cell.dataset.task.outputs)
    assert padding.any() == (name == "pattern")
