"""Text is read as documents, split without overlap, and encoded once, in bounded memory."""

import hashlib
import http.server
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import threading
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pe_lab
from pe_lab.data.text import corpus as corpus_module
from pe_lab.data.text import overlap as overlap_module
from pe_lab.data.text import sources
from pe_lab.data.text.cache import cache_folder, write_atomically
from pe_lab.data.text.clm import CLM
from pe_lab.data.text.corpus import Corpus, document_pieces
from pe_lab.data.text.overlap import HashSet, find_repeats
from pe_lab.data.text.sources import Download
from pe_lab.data.text.token_streams import SPLITS, TokenStreams
from pe_lab.data.text.tokenizer import BPE, Bytes

WORDS = ["the", "of", "tree", "café", "漢字", "runs", "𝛼", "below", "seven", "green", "x", "then", "sea", "who", "42"]


def sentence(seed: int, words: int) -> str:
    draw = random.Random(seed)
    return "".join(draw.choice(WORDS) + draw.choice([" ", " ", " ", "\n"]) for _ in range(words))


def corpus_at(path: Path, cache: Path, separator: str | None = None) -> Corpus:
    return Corpus("stdlib", str(path), separator, cache)


def encoded(path: Path, cache: Path, separator: str | None = None) -> TokenStreams:
    return TokenStreams(corpus_at(path, cache, separator), Bytes())


def text_of(text: TokenStreams, split: str) -> bytes:
    return b"".join(text.spelling[token] for token in text.stream(split).tolist())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make 150 documents of different sizes."""
    made = tmp_path / "folder"
    made.mkdir()
    for number in range(150):
        (made / f"{number:03}.txt").write_text(sentence(number, 20 + number % 40))
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "file.txt"
    made.write_text(sentence(0, 3000))
    return made


def test_the_source_of_the_standard_library_is_without_tests_and_what_was_installed() -> None:
    files = sources.standard_library()
    root = Path(sysconfig.get_path("stdlib"))
    inside = [file.relative_to(root) for file in files]
    assert {Path("argparse.py"), Path("json/decoder.py"), Path("email/mime/text.py")} <= set(inside)
    assert all(file.suffix == ".py" and file.is_file() for file in files)
    forbidden = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    assert not forbidden & {part for path in inside for part in path.parts}
    assert not [path for path in inside if path.name.startswith("_sysconfigdata")]
    assert files == sorted(set(files))
    assert sum(file.stat().st_size for file in files) > 5_000_000


def test_the_default_text_is_the_shipped_file_and_needs_no_network(tmp_path: Path) -> None:
    corpus = CLM(0, "clm", cache=str(tmp_path)).text.corpus
    (file,) = corpus.files
    assert file.is_relative_to(Path(pe_lab.__file__).parent)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == sources.CHECKSUMS[corpus.name]
    assert corpus.documents.sizes.tolist() == [1_115_394]


@pytest.mark.parametrize("name", sources.CHECKSUMS)
def test_the_readme_beside_a_shipped_file_has_its_checksum(name: str) -> None:
    assert sources.CHECKSUMS[name] in (sources.SHIPPED_FOLDER / "README.md").read_text()


DAMAGE = {
    "a letter": lambda file: file.write_bytes(file.read_bytes().replace(b"First Citizen", b"First citizen", 1)),
    "line ends": lambda file: file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n")),
    "truncated": lambda file: os.truncate(file, 1000),
    "missing": Path.unlink,
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_shipped_file_is_refused_in_one_line_even_if_it_was_read_before(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SHIPPED_FOLDER", Path(shutil.copytree(sources.SHIPPED_FOLDER, tmp_path / "shipped")))
    file = sources.shipped_file("tinyshakespeare")
    CLM(0, "clm", cache=str(tmp_path / "cache")).size("train")
    stat = file.stat()
    DAMAGE[kind](file)
    if file.is_file():
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(ValueError, match=r"^data\.corpus=tinyshakespeare must be the shipped file with") as caught:
        CLM(0, "clm", cache=str(tmp_path / "cache")).content()
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_the_files_of_a_folder_are_sorted_and_hidden_ones_left_out(tmp_path: Path) -> None:
    for name in ("b/a.txt", "a.txt", "c.txt", ".git/x.txt", "b/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [f.relative_to(tmp_path).as_posix() for f in corpus_at(tmp_path, tmp_path).files] == [
        "a.txt",
        "b/a.txt",
        "c.txt",
    ]


def test_the_cache_is_the_users_unless_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert cache_folder(None) == tmp_path / "pe_lab"
    assert cache_folder("elsewhere") == Path("elsewhere")


def test_what_is_written_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(KeyError), write_atomically(tmp_path / "folder") as temporary:
        temporary.mkdir()
        (temporary / "half").write_text("x")
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_two_may_write_the_same_folder_at_once(tmp_path: Path) -> None:
    with write_atomically(tmp_path / "folder") as slow:
        slow.mkdir()
        (slow / "file").write_text("slow")
        with write_atomically(tmp_path / "folder") as fast:
            fast.mkdir()
            (fast / "file").write_text("fast")
    assert (tmp_path / "folder" / "file").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serve a folder; return its address and the folder."""
    served = tmp_path / "served"
    served.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(served))

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", served
        server.shutdown()
        thread.join()


def offer(monkeypatch: pytest.MonkeyPatch, url: str, content: bytes, member: str | None = None) -> None:
    checksum = hashlib.sha256(content).hexdigest()
    monkeypatch.setitem(sources.DOWNLOADS, "enwik8", Download(url, checksum, member))


def test_a_named_text_is_downloaded_once(
    site: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = site
    (served / "a.txt").write_bytes(b"some text\n")
    offer(monkeypatch, f"{url}/a.txt", b"some text\n")
    for _ in range(2):
        (file,) = Corpus("enwik8", None, None, tmp_path / "cache").files
        assert file.read_bytes() == b"some text\n"
        (served / "a.txt").unlink(missing_ok=True)
    assert sorted(path.name for path in file.parent.iterdir()) == ["checksums.json", "enwik8"]


def test_the_text_is_taken_out_of_an_archive(
    site: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = site
    with zipfile.ZipFile(served / "a.zip", "w") as archive:
        archive.writestr("inside", "packed text")
    offer(monkeypatch, f"{url}/a.zip", (served / "a.zip").read_bytes(), "inside")
    (file,) = Corpus("enwik8", None, None, tmp_path / "cache").files
    assert file.read_text() == "packed text"
    assert sorted(path.name for path in file.parent.iterdir()) == ["checksums.json", "enwik8"]


@pytest.mark.parametrize("wrong", ["checksum", "address", "network"])
def test_what_cannot_be_had_is_refused_in_one_line_that_names_the_default(
    wrong: str, site: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = site
    (served / "a.txt").write_bytes(b"some text\n")
    if wrong == "network":
        url = "http://127.0.0.1:1"
    content = b"other text\n" if wrong == "checksum" else b"some text\n"
    offer(monkeypatch, f"{url}/{'b' if wrong == 'address' else 'a'}.txt", content)
    with pytest.raises(ValueError, match=r"^data\.corpus=enwik8 must be downloaded from http") as caught:
        _ = Corpus("enwik8", None, None, tmp_path / "cache").files
    message = str(caught.value)
    assert "\n" not in message
    assert "data.corpus=tinyshakespeare" in message
    assert "data.path" in message
    assert ("checksum" in message) == (wrong == "checksum")
    assert not list((tmp_path / "cache" / "downloads").iterdir())


MIXED = "ab\ncafé\n--\n漢字漢字漢字漢字\n----\nx--\n-\n𝛼𝛽𝛾--\nend"


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 16, 1000])
@pytest.mark.parametrize("separator", [None, "--\n", "漢字", "\n", "-"])
def test_the_pieces_of_documents_are_the_text(
    chunk: int, separator: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK_BYTES", chunk)
    path = tmp_path / "file.txt"
    path.write_bytes(MIXED.encode())
    documents = [b""]
    for piece, ends in document_pieces(path, separator):
        piece.decode()  # cut between characters
        documents[-1] += piece
        if ends:
            documents.append(b"")
    assert documents.pop() == b""
    assert [document.decode() for document in documents] == (MIXED.split(separator) if separator else [MIXED])


def test_a_long_text_is_cut_at_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK_BYTES", 64)
    path = tmp_path / "file.txt"
    path.write_text("".join(f"a line, the {number}th\n" for number in range(100)))
    cut = [piece for piece, ends in document_pieces(path, None) if piece and not ends]
    assert len(cut) > 20
    assert all(piece.endswith(b"\n") for piece in cut)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"text\0text", "NUL"),
        ("é".encode("latin-1"), r"\\xe9"),
        (b"\xff\xfea\0", r"\\xff"),
        (b"cut \xe6\xbc", r"\\xe6\\xbc"),
    ],
)
def test_a_file_that_is_no_text_is_refused_by_name(content: bytes, why: str, folder: Path, tmp_path: Path) -> None:
    (folder / "077.bin").write_bytes(content)
    said = rf"^data\.path must be text in UTF-8.*, got .*077\.bin with .*{why}"
    with pytest.raises(ValueError, match=said) as caught:
        _ = corpus_at(folder, tmp_path / "cache").documents
    assert "\n" not in str(caught.value)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


RECORDS = "".join(json.dumps({"id": number, "text": sentence(number, 30)}) + "\n" for number in range(200))


@pytest.mark.parametrize("name", ["a.jsonl", "b.JSON", "c.ndjson", "d.csv", "e.tsv", "f.ipynb", "g.pdf", "h.txt.gz"])
def test_a_format_that_wraps_text_is_refused_by_its_name_before_anything_is_read(
    name: str, folder: Path, tmp_path: Path
) -> None:
    (folder / "zzz.parquet").write_text("")
    (folder / name).write_text(RECORDS)
    for path in (folder, folder / name):
        with pytest.raises(
            ValueError, match=r"^data\.path must be plain text, got .*(\.txt files|data\.column)$"
        ) as caught:
            _ = corpus_at(path, tmp_path / "cache").files
        assert f"{folder / name} ({Path(name).suffix})" in str(caught.value)  # the first in order
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("separator", [None, "\n"])
@pytest.mark.parametrize("chunk", [2**9, 2**18])
@pytest.mark.parametrize("end", ["", "\n\n"])
def test_json_lines_are_refused_whatever_the_file_is_called(
    separator: str | None, chunk: int, end: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK_BYTES", chunk)
    (folder / "077.txt").write_text(RECORDS.rstrip("\n") + end)
    with pytest.raises(ValueError, match=r"^data\.path must be plain text, got .*077\.txt \(JSON lines\): ") as caught:
        _ = corpus_at(folder, tmp_path / "cache", separator).documents
    assert "\n" not in str(caught.value)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("code.py", "{}\n"),
        ("manifest.py", '{\n"name": "x",\n"depends": ["base"]\n}\n'),
        ("page.html", "<p>text</p>\n"),
        ("notes.md", '{"title": "x"}\n\nText after a header.\n'),
        ("references.txt", "[1] One.\n[2] Two.\n"),
        ("deep.txt", '{"a":' * 10_000 + "\n" + "{" * 10_000 + "\n"),
        ("README", "text\n"),
    ],
)
def test_source_code_and_markup_are_text(name: str, content: str, folder: Path, tmp_path: Path) -> None:
    (folder / name).write_text(content)
    assert len(corpus_at(folder, tmp_path / "cache").documents.sizes) == 151


def test_a_text_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "separators.txt").write_text("--" * 9)
    for name, why in (
        ("missing", "must be a file or a folder that is there, got .*missing"),
        ("nothing", "must have a file in it, got none in .*nothing"),
        ("empty.txt", "must have text in it, got nothing in .*empty.txt"),
        ("separators.txt", "must have text in it, got nothing in .*separators.txt"),
    ):
        with pytest.raises(ValueError, match=rf"^data\.path {why}") as caught:
            _ = corpus_at(tmp_path / name, tmp_path / "cache", "--").documents
        assert "\n" not in str(caught.value)


def test_a_corpus_is_known_by_its_documents_not_by_where_they_are(tmp_path: Path) -> None:
    def digest(name: str, files: dict[str, str], separator: str | None = None) -> str:
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_text(content)
        return corpus_at(tmp_path / name, tmp_path / "cache", separator).documents.digest

    first = digest("1", {"a": "one", "b": "two"})
    assert digest("2", {"x": "one", "y": "two"}) == first
    assert digest("3", {"x": "one--two"}, "--") == first
    others = [
        digest("4", {"a": "two", "b": "one"}),
        digest("5", {"a": "onet", "b": "wo"}),
        digest("6", {"a": "onetwo"}),
        digest("7", {"a": "one", "b": "twp"}),
    ]
    assert len({first, *others}) == 5


def test_files_that_have_not_changed_are_read_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = corpus_at(folder, tmp_path / "cache").documents
    with monkeypatch.context() as patch:
        patch.setattr(corpus_module, "document_pieces", None)
        again = corpus_at(folder, tmp_path / "cache").documents
    assert again.digest == first.digest
    assert np.array_equal(again.hashes, first.hashes)
    assert np.array_equal(again.sizes, first.sizes)
    file = folder / "010.txt"
    stat = file.stat()
    file.write_bytes(file.read_bytes()[::-1].replace(b"\n", b" ")[:0] + b"y" * stat.st_size)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert corpus_at(folder, tmp_path / "cache").documents.digest != first.digest


def test_many_documents_are_divided_whole_and_each_is_taken_once(folder: Path, tmp_path: Path) -> None:
    (folder / "copy.txt").write_bytes((folder / "003.txt").read_bytes())
    (folder / "empty.txt").write_text("")
    text = encoded(folder, tmp_path / "cache")
    split = {name: text_of(text, name).split(b"\xff")[:-1] for name in SPLITS}
    assert all(text_of(text, name).endswith(b"\xff") for name in SPLITS)
    found = [document for name in SPLITS for document in split[name]]
    assert sorted(found) == sorted({file.read_bytes() for file in folder.iterdir() if file.stat().st_size})
    total = sum(map(len, found))
    for name, share in (("train", 0.9), ("validation", 0.05), ("test", 0.05)):
        assert sum(map(len, split[name])) / total == pytest.approx(share, abs=0.02)
        assert split[name] == sorted(split[name], key=[f.read_bytes() for f in sorted(folder.iterdir())].index)


def test_where_a_document_goes_does_not_depend_on_its_name(folder: Path, tmp_path: Path) -> None:
    before = encoded(folder, tmp_path / "cache")
    test = set(text_of(before, "test").split(b"\xff"))
    for file in sorted(folder.iterdir()):
        file.rename(folder / f"z{999 - int(file.stem)}.txt")
    after = encoded(folder, tmp_path / "cache")
    assert after.folder != before.folder
    assert set(text_of(after, "test").split(b"\xff")) == test


def test_a_document_larger_than_what_is_held_out_is_for_training(folder: Path, tmp_path: Path) -> None:
    """This holds even for a document whose hash is among the highest, which would come last."""
    candidates = (sentence(seed, 600) for seed in range(1000, 9000))
    large = next(text for text in candidates if hashlib.blake2b(text.encode(), digest_size=8).digest() > b"\xff")
    (folder / "large.txt").write_text(large)
    text = encoded(folder, tmp_path / "cache")
    assert len(large.encode()) > 0.05 * sum(text.sizes.values())
    assert large.encode() in text_of(text, "train")
    assert text.sizes["validation"] > 1000
    assert text.sizes["test"] > 1000


@pytest.mark.parametrize("files", [1, 2, 7, 60])
def test_few_documents_are_cut_in_a_row(files: int, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    contents = [sentence(number, 2400 // files).encode() for number in range(files)]
    for number, content in enumerate(contents):
        (tmp_path / "folder" / f"{number:02}.txt").write_bytes(content)
    text = encoded(tmp_path / "folder", tmp_path / "cache")
    parts = [text_of(text, name) for name in SPLITS]
    assert b"".join(parts) == b"".join(content + b"\xff" for content in contents)
    assert not any(part.startswith(b"\xff") for part in parts)
    total = sum(map(len, parts))
    assert len(parts[0]) / total == pytest.approx(0.9, abs=0.005)
    assert len(parts[1]) / total == pytest.approx(0.05, abs=0.005)
    for part in parts:
        part.replace(b"\xff", b"").decode()


def test_an_end_stays_with_its_document_where_the_cut_is_between_two(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for number in range(20):
        (tmp_path / "folder" / f"{number:02}.txt").write_text(f"{number:010}")
    text = encoded(tmp_path / "folder", tmp_path / "cache")
    assert text_of(text, "train").endswith(b"17\xff")
    assert text_of(text, "validation") == b"0000000018\xff"
    assert text_of(text, "test") == b"0000000019\xff"


def test_tokens_in_use_are_those_of_the_training_split(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("abba" * 450 + "abbc" * 50)
    text = encoded(tmp_path / "file.txt", tmp_path / "cache")
    assert b"c" in text_of(text, "test")
    assert text.used_tokens == [*b"ab"]


@pytest.mark.parametrize("extra", range(8))
@pytest.mark.parametrize("chunk", [4, 16, 4096])
def test_a_cut_never_parts_a_character(extra: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK_BYTES", chunk)
    path = tmp_path / "file.txt"
    path.write_text("x" * extra + "𝛼" * 100)
    text = encoded(path, tmp_path / "cache")
    parts = [text_of(text, name).replace(b"\xff", b"").decode() for name in SPLITS]
    assert "".join(parts) == path.read_text()
    assert all(parts)


def test_the_streams_are_on_disk_and_of_one_byte_a_token(file: Path, tmp_path: Path) -> None:
    text = encoded(file, tmp_path / "cache")
    for name in SPLITS:
        assert isinstance(text.stream(name), np.memmap)
        assert text.stream(name).dtype == np.uint8
        assert len(text.stream(name)) == text.sizes[name]
    assert text.tokenizer.vocabulary == 256


@pytest.mark.skipif(sys.platform != "linux", reason="counts the open files of a process")
def test_no_file_stays_open_until_tokens_are_read(file: Path, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    texts = [encoded(file, tmp_path / "cache") for _ in range(3)]
    for text in texts:
        assert text.sizes["train"] > 0
        assert len(text.repeats("test", 16)) >= 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_text_is_encoded_once(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = text_of(encoded(file, tmp_path / "cache"), "test")
    monkeypatch.setattr(TokenStreams, "_write", None)
    assert text_of(encoded(file, tmp_path / "cache"), "test") == first


def test_memory_does_not_grow_with_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK_BYTES", 2**14)
    monkeypatch.setattr(overlap_module, "READ_POSITIONS", 2**13)
    monkeypatch.setattr(overlap_module, "BLOCK_POSITIONS", 2**10)
    monkeypatch.setattr(overlap_module, "AT_ONCE", 2**14)
    monkeypatch.setattr(HashSet, "BITS", 10)
    path = tmp_path / "file.txt"
    with path.open("w", encoding="utf-8") as opened:
        for number in range(40):
            opened.write(sentence(number, 400) * 80)
    size = path.stat().st_size
    assert size > 6_000_000
    text = encoded(path, tmp_path / "cache")
    tracemalloc.start()
    try:
        assert sum(text.sizes.values()) == size + 1
        text.repeats("test", 16)  # hashes of all known sequences have half the size of the text
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size / 2


LEARNED = 300


def by_pairs(path: Path, cache: Path, size: int = LEARNED) -> TokenStreams:
    return TokenStreams(corpus_at(path, cache), BPE(size))


def test_tokens_spell_the_text(file: Path, folder: Path, tmp_path: Path) -> None:
    for path in (file, folder):
        text, plain = by_pairs(path, tmp_path / "cache"), encoded(path, tmp_path / "cache")
        for name in SPLITS:
            assert text_of(text, name) == text_of(plain, name)
        assert text.sizes["train"] < 0.8 * plain.sizes["train"]


def test_the_vocabulary_is_bytes_what_was_learned_and_two_marks(file: Path, tmp_path: Path) -> None:
    text = by_pairs(file, tmp_path / "cache")
    *learned, mask, end = text.spelling
    assert len(learned) == len(set(learned)) == LEARNED - 2
    assert {bytes([byte]) for byte in range(256)} < set(learned)
    assert (text.mask, mask, text.end, end) == (LEARNED - 2, b"\xfe", LEARNED - 1, b"\xff")
    assert text.stream("train").dtype == np.uint16
    assert not (text.stream("train") == text.mask).any()


def test_it_is_learned_from_the_training_split_alone(file: Path, tmp_path: Path) -> None:
    before = by_pairs(file, tmp_path / "cache")
    content = file.read_bytes()
    held_out = len(content) - len(text_of(before, "train"))
    file.write_bytes(content[:-held_out] + b"z" * held_out)
    after = by_pairs(file, tmp_path / "cache")
    assert text_of(after, "test") != text_of(before, "test")
    assert after.spelling == before.spelling
    file.write_bytes(b"z" * held_out + content[held_out:])
    assert by_pairs(file, tmp_path / "cache").spelling != before.spelling


def test_it_is_the_same_in_every_process(file: Path, tmp_path: Path) -> None:
    text = by_pairs(file, tmp_path / "here")
    code = (
        "import sys; from pathlib import Path; from pe_lab.data.text.corpus import Corpus;"
        "from pe_lab.data.text.tokenizer import BPE; from pe_lab.data.text.token_streams import TokenStreams;"
        f"TokenStreams(Corpus('stdlib', sys.argv[1], None, Path(sys.argv[2])), BPE({LEARNED})).folder"
    )
    environment = os.environ | {"PYTHONHASHSEED": "77", "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run([sys.executable, "-c", code, file, tmp_path / "there"], check=True, env=environment)
    there = tmp_path / "there" / "tokens" / text.folder.name
    names = sorted(path.name for path in text.folder.iterdir())
    assert names == sorted(path.name for path in there.iterdir())
    for name in names:
        assert (there / name).read_bytes() == (text.folder / name).read_bytes(), name


def test_a_vocabulary_larger_than_the_text_gives_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("abab " * 100)
    with pytest.raises(ValueError, match=r"^data\.vocabulary_size must be at most 26\d, .* got 5000$"):
        _ = by_pairs(tmp_path / "file.txt", tmp_path / "cache", 5000).folder
    assert not list((tmp_path / "cache" / "tokens").iterdir())


def saved(tmp_path: Path, streams: dict[str, np.ndarray]) -> dict[str, Path]:
    for name, stream in streams.items():
        np.save(tmp_path / f"{name}.npy", stream)
    return {name: tmp_path / f"{name}.npy" for name in streams}


@pytest.mark.parametrize(("block", "at_once"), [(1, 2**24), (13, 10), (64, 2**24), (2**20, 7)])
@pytest.mark.parametrize("length", [2, 3, 8])
def test_they_are_those_of_a_slow_search(
    block: int, at_once: int, length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap_module, "READ_POSITIONS", 5 * block // 2)
    monkeypatch.setattr(overlap_module, "BLOCK_POSITIONS", block)
    monkeypatch.setattr(overlap_module, "AT_ONCE", at_once)
    monkeypatch.setattr(HashSet, "BITS", 8)
    draw = np.random.default_rng(length)
    symbols = {2: 12, 3: 6, 8: 2}[length]
    streams = {
        name: draw.integers(0, symbols, size).astype(np.uint8)
        for name, size in (("one", 150), ("two", 60), ("held", 170))
    }

    def windows(stream: np.ndarray, step: int) -> list[bytes]:
        return [stream[at : at + length].tobytes() for at in range(0, len(stream) - length + 1, step)]

    sequences = {window for name in ("one", "two") for window in windows(streams[name], length)}
    anywhere = {window for name in ("one", "two") for window in windows(streams[name], 1)}
    own = set(windows(streams["held"], length))
    expected = [
        place
        for place, window in enumerate(windows(streams["held"], 1))
        if window in sequences or (window in anywhere and window in own)
    ]
    assert 0 < len(expected) < len(streams["held"]) - length
    files = saved(tmp_path, streams)
    found = find_repeats([files["one"], files["two"]], files["held"], length, symbols, tmp_path)
    assert found.tolist() == expected
