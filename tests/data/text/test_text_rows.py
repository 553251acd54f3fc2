"""Text in the rows of JSON lines, Parquet and saved datasets is that of plain files: the same documents and tokens."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pe_lab.data.text.clm import CLM
from pe_lab.data.text.corpus import Corpus
from pe_lab.data.text.token_streams import SPLITS, TokenStreams
from pe_lab.data.text.tokenizer import Bytes

TEXTS = [f"document {number} has café 漢字 and {number * number} words\nin two lines " * 4 for number in range(150)]


def as_lines(folder: Path, texts: list[str]) -> None:
    for part in (0, 1):
        lines = [json.dumps({"id": 1, "text": text}) for text in texts[part * 75 :][:75]]
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n\n")


def as_parquet(folder: Path, texts: list[str]) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = arrow.table({"id": list(range(len(texts))), "text": texts})
    pyarrow.parquet.write_table(table, folder / "0.parquet", row_group_size=40)


def as_saved(folder: Path, texts: list[str]) -> None:
    """Write what datasets 4 writes in DatasetDict.save_to_disk, and a file of its cache, which is no data."""
    arrow = pytest.importorskip("pyarrow")
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split, part in (("train", texts[:100]), ("test", texts[100:])):
        inner = folder / split
        inner.mkdir()
        (inner / "dataset_info.json").write_text("{}")
        (inner / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
        table = arrow.table({"text": part})
        for name in ("data-00000-of-00001.arrow", "cache-1f.arrow"):
            with arrow.ipc.new_stream(str(inner / name), table.schema) as stream:
                stream.write_table(table, max_chunksize=30)


WRITERS: dict[str, Callable[[Path, list[str]], None]] = {"lines": as_lines, "parquet": as_parquet, "saved": as_saved}


def encoded(path: Path, cache: Path, column: str | None = None) -> TokenStreams:
    return TokenStreams(Corpus("stdlib", str(path), None, cache, column), Bytes())


@pytest.mark.parametrize("writer", WRITERS)
def test_rows_are_the_documents_that_files_of_the_same_text_are(writer: str, tmp_path: Path) -> None:
    plain, folder = tmp_path / "plain", tmp_path / "folder"
    plain.mkdir()
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (plain / f"{number:03}.txt").write_text(text)
    WRITERS[writer](folder, TEXTS)
    expected, rows = encoded(plain, tmp_path / "cache"), encoded(folder, tmp_path / "cache", "text")
    assert rows.corpus.documents.digest == expected.corpus.documents.digest
    assert rows.digest == expected.digest
    assert all((rows.stream(split) == expected.stream(split)).all() for split in SPLITS)


def test_a_task_of_rows_has_windows_of_documents(tmp_path: Path) -> None:
    as_lines(tmp_path, TEXTS)
    task = CLM(0, "clm", path=str(tmp_path / "0.jsonl"), column="text", length=64, cache=str(tmp_path / "cache"))
    assert task.size("train") > 0
    assert task.content()["column"] is None  # the tokens say all


def test_a_task_of_plain_text_has_the_identity_of_before(tmp_path: Path) -> None:
    assert "column" not in CLM(0, "clm", cache=str(tmp_path)).content()
    assert CLM.neutral["column"] is None


LINE = json.dumps({"id": 7, "text": "words"})
WRONG = {
    "no such column": ("a.jsonl", LINE, "title", r"^data\.column must be one of the columns of .*id, text, got title$"),
    "no text": ("a.jsonl", LINE, "id", r"^data\.column=id must be text in every row, got 7 in row 1 of "),
    "null": ("a.jsonl", LINE + '\n{"text": null}', "text", r"must be text in every row, got None in row 2 of "),
    "no object": ("a.jsonl", LINE + "\n[1]", "text", r"^data\.path must have a JSON object .* line 2 of "),
    "no JSON": ("a.ndjson", "words", "text", r"^data\.path must have a JSON object .* line 1 of "),
    "half a character": ("a.jsonl", '{"text": "\\ud83d"}', "text", r"^data\.path must be text that UTF-8 can write"),
    "plain text": ("a.txt", "words", "text", r"^data\.path must have files of \.jsonl, .*a\.txt$"),
}


@pytest.mark.parametrize("case", WRONG)
def test_rows_without_text_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    name, content, column, message = WRONG[case]
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        _ = encoded(tmp_path, tmp_path.parent / f"{tmp_path.name}_cache", column).sizes
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_file_of_another_format_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_text("words that are no table " * 9)
    with pytest.raises(ValueError, match=r"^data\.path must be a file in the format of its name, got ") as caught:
        _ = encoded(tmp_path / name, tmp_path / "cache", "text").sizes
    assert "\n" not in str(caught.value)


def test_pyarrow_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"^data\.path=.*a\.parquet needs pyarrow, .*: pip install "):
        _ = encoded(tmp_path, tmp_path.parent / f"{tmp_path.name}_cache", "text").sizes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "text"}, "^column=text needs path"),
        ({"column": "a", "path": "b", "separator": "c"}, "^separator must"),
    ],
)
def test_a_column_that_cannot_be_honoured_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CLM(0, "clm", **options)
