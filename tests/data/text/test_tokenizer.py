"""A tokenizer of a file has the tokens that its library gives, and gives the text back; others are refused."""

import json
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers.decoders import ByteLevel as Decoder
from tokenizers.pre_tokenizers import ByteLevel, Whitespace
from tokenizers.trainers import BpeTrainer

from pe_lab.data.text.clm import CLM
from pe_lab.data.text.tokenizer import FromFile

TEXT = "the tree of café 漢字 runs below seven green seas, then who\n" * 60
SPECIAL = "<|end|>"


def written(folder: Path, more: int = 0, byte_level: bool = True) -> Path:
    """Write a tokenizer.json, with so many tokens that never occur."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = ByteLevel(add_prefix_space=False) if byte_level else Whitespace()
    if byte_level:
        model.decoder = Decoder()
    alphabet = ByteLevel.alphabet() if byte_level else []
    trainer = BpeTrainer(vocab_size=300, special_tokens=[SPECIAL], show_progress=False, initial_alphabet=alphabet)
    model.train_from_iterator([TEXT], trainer)
    model.add_tokens([f"token{number}" for number in range(more)])
    model.enable_truncation(5)
    model.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("more", [0, 70_000])
def test_tokens_are_those_of_the_file_and_spell_the_text(more: int, tmp_path: Path) -> None:
    file = written(tmp_path, more)
    ours, theirs = FromFile(str(tmp_path)), tokenizers.Tokenizer.from_file(str(file))
    theirs.no_truncation()
    text = TEXT + SPECIAL
    tokens = ours.encode(text.encode())
    assert tokens.tolist() == theirs.encode(text, add_special_tokens=False).ids
    assert tokens.dtype == ("uint32" if more else "uint16")
    assert ours.vocabulary == theirs.get_vocab_size() + 2 == len(ours.spelling())
    assert b"".join(ours.spelling()[token] for token in tokens.tolist()).decode() == text


def test_a_task_is_identified_by_the_tokens_and_not_by_the_place_of_the_file(tmp_path: Path) -> None:
    found = []
    (tmp_path / "text.txt").write_text("".join(f"{number} {TEXT}" for number in range(60)))
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        options = {"path": str(tmp_path / "text.txt"), "cache": str(tmp_path / "cache"), "length": 32}
        task = CLM(0, "clm", tokenizer=str(written(tmp_path / name)), **options)
        found.append(task.content())
        assert task.batch("train", torch.arange(2)).tokens.max() < task.task.vocabulary
    assert found[0] == found[1]
    assert found[0]["tokenizer"] == "file"


def test_what_is_no_such_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "wrong.json").write_text(json.dumps({"model": "none"}))
    (tmp_path / "words").mkdir()
    written(tmp_path / "words", byte_level=False)
    for path, message in (
        ("none", "must be bytes, bpe, or a tokenizer.json"),
        ("wrong.json", "must be a tokenizer.json"),
        ("words", "ByteLevel"),
    ):
        with pytest.raises(ValueError, match=rf"^data\.tokenizer .*{message}") as caught:
            CLM(0, "clm", tokenizer=str(tmp_path / path))
        assert "\n" not in str(caught.value)


def test_a_tokenizer_that_changes_the_text_is_refused(tmp_path: Path) -> None:
    model = tokenizers.Tokenizer.from_file(str(written(tmp_path)))
    model.normalizer = tokenizers.normalizers.Lowercase()
    model.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"^data\.tokenizer must give the text back"):
        FromFile(str(tmp_path)).encode(b"Words")
