"""After any damage to the cache the same command has the same results, or says what to do."""

import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pe_lab.data.pattern import Pattern
from pe_lab.data.text import cache as cache_module
from pe_lab.data.text import sources
from pe_lab.data.text.cache import cached_folder
from pe_lab.data.text.clm import CLM
from pe_lab.data.text.corpus import Corpus
from pe_lab.data.text.token_streams import SPLITS, TokenStreams
from pe_lab.data.text.tokenizer import BPE
from pe_lab.system.files import file_digest, write_json

Found = tuple[list[bytes], dict, dict]


def found(place: Path) -> Found:
    """Return the sequences, reference levels and identity of a text."""
    data = CLM(0, "clm", path=str(place / "text.txt"), cache=str(place / "cache"), length=16, test_sequences=20)
    batches = [data.batch(split, torch.arange(data.size(split))) for split in SPLITS]
    tokens = [part.numpy().tobytes() for batch in batches for part in (batch.tokens, batch.targets, batch.layout.pos)]
    return tokens, data.floors("test"), data.content()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Found]:
    place = tmp_path_factory.mktemp("sound")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(1, 8))) for _ in range(200)]
    (place / "text.txt").write_text("".join(f"{' '.join(draw.choices(words, k=9))}\n" for _ in range(250)))
    return place, found(place)


@pytest.fixture
def place(sound: tuple[Path, Found], tmp_path: Path) -> Path:
    """Return a copy of the text and its complete cache."""
    copied = shutil.copytree(sound[0], tmp_path / "place")
    shutil.rmtree(copied / "cache" / "documents")  # known by the path of the text
    assert found(copied) == sound[1]
    return copied


def files(place: Path) -> list[Path]:
    return sorted(path.relative_to(place) for path in (place / "cache").rglob("*") if path.is_file())


def flip(path: Path, part: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(part * (len(content) - 1))] ^= 1 << 4
    path.write_bytes(content)


def replace(path: Path, put: Callable[[Path], object]) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    put(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size * 2 // 3),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "emptied": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "zeroed at the end": lambda path: path.write_bytes(path.read_bytes()[:-9] + bytes(9)),
    "a bit at the beginning": lambda path: flip(path, 0),
    "a bit in the middle": lambda path: flip(path, 0.5),
    "a bit at the end": lambda path: flip(path, 1),
    "deleted": lambda path: replace(path, lambda _: None),
    "a folder": lambda path: replace(path, Path.mkdir),
    "a pipe": lambda path: replace(path, os.mkfifo),
    "a device": lambda path: replace(path, lambda path: path.symlink_to("/dev/zero")),
    "a link to nothing": lambda path: replace(path, lambda path: path.symlink_to("nothing")),
    "a link to itself": lambda path: replace(path, lambda path: path.symlink_to(path.name)),
}
# what can take the place of a folder of the cache
INSTEAD = {name: DAMAGE[name] for name in ("deleted", "a folder", "a pipe", "a link to nothing", "a link to itself")}
INSTEAD["a file"] = lambda path: replace(path, Path.touch)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_made_again_and_that_is_said(
    kind: str, place: Path, sound: tuple[Path, Found], capsys: pytest.CaptureFixture
) -> None:
    everything = files(place)
    assert {file.parts[1] for file in everything} == {"documents", "tokens", "repeats", "levels"}
    for file in everything:
        DAMAGE[kind](place / file)
        assert found(place) == sound[1], file
        (printed,) = capsys.readouterr().err.splitlines()
        assert printed.startswith(f"data.cache: {(place / file).parent} does not have ")
        assert printed.endswith("; it is made again")
        assert found(place) == sound[1], file
        assert capsys.readouterr().err == ""


def test_checksums_of_other_files_are_none(place: Path, sound: tuple[Path, Found]) -> None:
    """An entry whose checksums name no file of it is not sound, whatever they name elsewhere."""
    text = place / "text.txt"
    for file in (file for file in files(place) if file.name != "checksums.json"):
        (place / file).unlink()
        write_json(
            place / file.parent / "checksums.json", {os.path.relpath(text, place / file.parent): file_digest(text)}
        )
        assert found(place) == sound[1], file


@pytest.mark.parametrize("kind", INSTEAD)
def test_what_stands_where_a_folder_was_is_replaced_or_named(
    kind: str, place: Path, sound: tuple[Path, Found], capsys: pytest.CaptureFixture
) -> None:
    folders = [path for path in (place / "cache").rglob("*") if path.is_dir()]
    for folder in [*sorted(folders, reverse=True), place / "cache"]:
        INSTEAD[kind](folder)
        try:
            again = found(place)
        except ValueError as error:
            reason = str(error)
            assert kind not in ("deleted", "a folder")
        else:
            assert again == sound[1]
            continue
        assert "\n" not in reason
        assert reason.startswith(f"data.cache must be a folder that can be written to, got {folder} (")
        folder.unlink()
        assert found(place) == sound[1]


def test_tokens_that_were_changed_are_another_text(place: Path, sound: tuple[Path, Found]) -> None:
    """The identity has the digest of the tokens, so it differs even if their checksums fit."""
    (tokens,) = (place / "cache" / "tokens").iterdir()
    stream = np.load(tokens / "train.npy")
    np.save(tokens / "train.npy", np.zeros_like(stream))
    names = [path.name for path in tokens.iterdir() if path.name != "checksums.json"]
    write_json(tokens / "checksums.json", {name: file_digest(tokens / name) for name in names})
    changed = found(place)
    assert changed[0] != sound[1][0]
    assert changed[1] != sound[1][1]
    assert changed[2] != sound[1][2]


def test_an_entry_that_another_process_has_made_again_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry was found damaged earlier and is about to be removed."""
    (tokens,) = (place / "cache" / "tokens").iterdir()
    before = tokens.stat().st_ino
    reasons = iter(["was damaged a moment ago"])
    monkeypatch.setattr(cache_module, "find_damage", lambda entry: next(reasons, None))
    assert cached_folder(tokens, lambda _: None) == tokens
    assert tokens.stat().st_ino == before


def test_a_damaged_download_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retrieved = []

    def retrieve(name: str, target: Path) -> None:
        retrieved.append(name)
        target.write_text("some text\n", encoding="utf-8")

    monkeypatch.setattr(sources, "_retrieve", retrieve)
    for kind in DAMAGE.values():
        for name in ("enwik8", "checksums.json"):
            (file,) = Corpus("enwik8", None, None, tmp_path).files
            assert file.read_text() == "some text\n"
            before = len(retrieved)
            kind(file.parent / name)
            (file,) = Corpus("enwik8", None, None, tmp_path).files
            assert file.read_text() == "some text\n"
            assert len(retrieved) == before + 1


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Make something that is neither a file nor a folder."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)  # the names of sockets are short
        listening.bind("socket")
    return {"pipe": tmp_path / "pipe", "socket": tmp_path / "socket", "device": Path("/dev/zero")}


@pytest.mark.parametrize("name", ["pipe", "socket", "device"])
def test_what_may_never_end_is_refused_as_a_text_and_as_a_table(name: str, odd: dict[str, Path]) -> None:
    for refused in (
        lambda: Corpus("stdlib", str(odd[name]), None, Path("cache")).documents,
        lambda: Pattern(0, path=str(odd[name])),
    ):
        with pytest.raises(ValueError, match=rf"^data\.path must be a file .*{odd[name]}") as caught:
            refused()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["pipe", "socket", "linked", "nothing"])
def test_what_is_no_file_in_a_folder_is_named(name: str, odd: dict[str, Path], tmp_path: Path) -> None:
    place = tmp_path / "texts"
    (place / "inner").mkdir(parents=True)
    (place / "inner" / "a.txt").write_text("some text")
    if name in odd:
        odd[name].rename(place / "inner" / name)
    else:
        (place / "inner" / name).symlink_to(tmp_path if name == "linked" else tmp_path / name)
    with pytest.raises(ValueError, match=rf"^data\.path must have only files and folders in it, got .*inner/{name}$"):
        _ = Corpus("stdlib", str(place), None, tmp_path / "cache").files


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_cannot_be_read_is_named_and_not_left_out(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts" / "closed").mkdir(parents=True)
    for name in ("a.txt", "closed/b.txt"):
        (tmp_path / "texts" / name).write_text("some text")
    closed = str(tmp_path / "texts" / ("closed" if what == "folder" else "a.txt"))

    def refusing(real: Callable) -> Callable:
        def refuse(path: object, *arguments: object, **more: object) -> object:
            if str(path) == closed:
                raise PermissionError(13, "Permission denied", closed)
            return real(path, *arguments, **more)

        return refuse

    # modes do not stop root
    monkeypatch.setattr(os, "scandir", refusing(os.scandir))
    monkeypatch.setattr(Path, "open", refusing(Path.open))
    with pytest.raises(
        ValueError, match=rf"^data\.path must be .* that can be read, got {closed} \(Permission denied\)$"
    ):
        _ = Corpus("stdlib", str(tmp_path / "texts"), None, tmp_path / "cache").documents


def test_a_line_without_spaces_is_learned_and_spelled(tmp_path: Path) -> None:
    """Without cutting, a word of 300,000 letters would take minutes (quadratic in its length)."""
    draw = random.Random(0)
    (tmp_path / "text.txt").write_text("".join(draw.choices("abcdefgh", k=300_000)))
    text = TokenStreams(Corpus("stdlib", str(tmp_path / "text.txt"), None, tmp_path / "cache"), BPE(300))
    tokens = [text.spelling[token] for split in SPLITS for token in text.stream(split).tolist()]
    assert b"".join(tokens)[:-1] == (tmp_path / "text.txt").read_bytes()
    assert max(map(len, tokens)) > 1
    assert len(tokens) < 200_000
