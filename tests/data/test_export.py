"""Exports equal the dataset, can be read through data.path, and every wrong override gets one line."""

import csv
import email
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import hydra
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from pe_lab import config
from pe_lab.data.__main__ import main
from pe_lab.data.base import IGNORE, Batch, Dataset, InMemoryDataset, Task
from pe_lab.data.export import split_sizes, write_dataset
from pe_lab.data.pattern import Pattern
from pe_lab.encodings.layout import PADDING, Layout

NAMES = sorted(path.stem for path in (config.config_folder() / "data").glob("*.yaml"))
SIZES = {"train": 60, "validation": 30, "test": 20, "demo": 10}
OF_TEXT = {"length": 32, "train_sequences": 100, "test_sequences": 8}


def small(name: str, folder: Path) -> list[str]:
    """Return overrides of a small dataset."""
    options = config.expand_overrides([f"data={name}"], False)[0].data
    settings = {split: size for split, size in SIZES.items() if split in options}
    if "corpus" in options:
        source = Path(email.__file__).parent
        shutil.copytree(source, folder / "text", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        settings = OF_TEXT | {"path": folder / "text", "cache": folder / "cache"}
    return [f"data={name}", *(f"data.{key}={value}" for key, value in settings.items())]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Dataset, dict, list[Path]]]:
    """Return datasets by name, their settings and files, made once for all tests."""

    @cache
    def once(name: str) -> tuple[Dataset, dict, list[Path]]:
        folder = tmp_path_factory.mktemp(name)
        data, settings = make(*small(name, folder))
        return data, settings, write_dataset(data, folder / "out", 0, settings)

    return once


def make(*overrides: str) -> tuple[Dataset, dict]:
    cfg = config.expand_overrides(list(overrides), False)[0]
    return hydra.utils.instantiate(cfg.data)(seed=cfg.seed), OmegaConf.to_container(cfg.data)


def table(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def same(left: Batch, right: Batch) -> bool:
    pairs = [(getattr(left, name), getattr(right, name)) for name in ("tokens", "targets", "role", "headline")]
    pairs += [(getattr(left.layout, name), getattr(right.layout, name)) for name in ("pos", "segment")]
    return all(torch.equal(*pair) for pair in pairs) and left.layout.causal == right.layout.causal


@pytest.mark.parametrize("name", ["pattern", "pattern_hard", "bag", "digits"])
def test_an_exported_csv_comes_back_as_exactly_the_same_batches(name: str, tmp_path: Path) -> None:
    data, settings = make(*small(name, tmp_path), "seed=3")
    file, *_ = write_dataset(data, tmp_path, 3, settings)
    back, _ = make(f"data={name}", f"data.path={file}")
    assert back.splits == data.splits
    for split in data.splits:
        assert same(back.whole(split), data.whole(split))
        assert back.size(split) == data.size(split)


@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_is_written_as_its_schema_says(name: str, exported) -> None:
    data, settings, files = exported(name)
    assert [file.name for file in files] == [f"{name}.csv", f"{name}.npz", "schema.json"]
    assert sorted(files[0].parent.iterdir()) == sorted(files)
    lines, schema = table(files[0]), json.loads(files[2].read_text())
    assert list(lines[0]) == [field["name"] for field in schema["fields"]]
    assert list(lines[0]) == ["split", "tokens", *["documents"] * ("documents" in lines[0]),
                              "label" if data.task.pooled else "targets"]  # fmt: skip
    assert len(lines) == sum(schema["sizes"].values())
    for line in lines:
        for field in schema["fields"]:
            fits(line[field["name"]], field)
    assert schema["sizes"] == split_sizes(data)
    task = data.task
    assert (schema["name"], schema["vocabulary"], schema["length"]) == (name, task.vocabulary, task.length)
    assert (schema["classes"], schema["causal"], schema["pooled"]) == (task.outputs, task.causal, task.pooled)
    assert schema["seed"] == 0
    assert schema["settings"] == settings
    assert schema["missingValues"] == [""]
    assert schema["floors"] == {split: data.floors(split) for split in ("validation", "test")}


def fits(value: str, field: dict) -> None:
    """Return whether a value satisfies the constraints of a Table Schema field."""
    limits = field["constraints"]
    assert limits["required"]
    assert value
    assert field["description"]
    if field["type"] == "integer":
        assert limits["minimum"] <= int(value) <= limits["maximum"]
    elif "enum" in limits:
        assert value in limits["enum"]
    else:
        assert re.fullmatch(limits["pattern"], value)


@pytest.mark.parametrize("name", NAMES)
def test_csv_and_npz_say_what_the_batches_say(name: str, exported) -> None:
    data, _, (text, archive, schema) = exported(name)
    lines = iter(table(text))
    with np.load(archive, allow_pickle=False) as arrays:
        described = json.loads(schema.read_text())["arrays"]
        assert described == {key: {"shape": list(arrays[key].shape), "type": "int32"} for key in arrays.files}
        for split, size in split_sizes(data).items():
            batch = data.batch(split, torch.arange(size))
            assert np.array_equal(arrays[f"{split}_tokens"], batch.tokens)
            assert np.array_equal(arrays[f"{split}_documents"], batch.layout.segment)
            targets = batch.targets[:, 0] if data.task.pooled else batch.targets
            assert np.array_equal(arrays[f"{split}_label" if data.task.pooled else f"{split}_targets"], targets)
            is_token = batch.layout.segment != PADDING
            for row, counts, target in zip(batch.tokens, is_token, targets, strict=True):
                line = next(lines)
                assert line["split"] == split
                assert line["tokens"] == " ".join(str(token) for token in row[counts].tolist())
                if data.task.pooled:
                    assert line["label"] == str(target.item())
                else:
                    asked = ["-" if one == IGNORE else str(one) for one in target[counts].tolist()]
                    assert line["targets"] == " ".join(asked)
    assert next(lines, None) is None


def test_structured_is_written_without_padding_and_with_a_mark_where_nothing_is_asked(tmp_path: Path) -> None:
    data, settings = make("data=structured")
    lines = table(write_dataset(data, tmp_path, 0, settings)[0])
    for line in lines:
        tokens, targets = line["tokens"].split(), line["targets"].split()
        assert (tokens[0], tokens[-1]) == ("128", "130")
        assert "131" not in tokens
        assert targets == [*tokens[1:], "-"]


class Packed(InMemoryDataset):
    """Two documents in one sequence, then padding."""

    roles = ("next",)

    def __init__(self, size: int = 3) -> None:
        self.name, self.number = "packed", size
        self.task = Task(vocabulary=5, length=4, outputs=5, causal=True)

    def size(self, split: str) -> int:
        return self.number

    def make(self, split: str) -> Batch:
        tokens = torch.tensor([[1, 2, 3, 0]]).expand(self.number, 4)
        targets = torch.tensor([[2, IGNORE, IGNORE, IGNORE]]).expand(self.number, 4)
        segment = torch.tensor([[0, 0, 1, PADDING]]).expand(self.number, 4)
        layout = Layout(torch.tensor([[0, 1, 0, 1]]), segment, True)
        return Batch(tokens, targets, torch.zeros_like(targets), targets != IGNORE, layout)

    def floors(self, split: str) -> dict:
        return {}


def test_packed_documents_stay_apart(tmp_path: Path) -> None:
    lines = table(write_dataset(Packed(), tmp_path, 0, {})[0])
    assert lines[0] == {"split": "train", "tokens": "1 2 3", "documents": "0 0 1", "targets": "2 - -"}
    schema = json.loads((tmp_path / "schema.json").read_text())
    assert [field["name"] for field in schema["fields"]] == ["split", "tokens", "documents", "targets"]


@pytest.mark.parametrize(
    ("data", "got"),
    [
        (Packed(100_001), "got 100,001 of 4 in train of data=packed"),
        (Pattern(0, length=64, train=1000, test=78_126), "got 78,126 of 64 in test of data=pattern"),
    ],
)
def test_too_much_is_refused_before_any_is_made(data: Dataset, got: str, tmp_path: Path) -> None:
    message = "data must have at most 100,000 sequences and 5,000,000 tokens in a split to be exported, " + got
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        write_dataset(data, tmp_path, 0, {})
    assert not list(tmp_path.iterdir())


def test_the_command_writes_the_same_bytes_twice_and_leaves_nothing_else(tmp_path, program) -> None:
    words = ["data=bag", "data.train=50", "data.vocabulary=4", "seed=5"]
    content = []
    for folder in ("once", "twice", "twice"):
        status, out, err = program(main, "export", *words, f"out={tmp_path / folder}")
        assert (status, err) == (0, "")
        assert out[-1] == "train 50, validation 1,000, test 1,000, demo 100"
        files = [Path(line) for line in out[:-1]]
        assert [file.name for file in files] == ["bag.csv", "bag.npz", "schema.json"]
        assert sorted((tmp_path / folder / "bag").iterdir()) == sorted(files)
        content.append([file.read_bytes() for file in files])
    assert content[0] == content[1] == content[2]
    schema = json.loads(content[0][2])
    assert (schema["seed"], schema["settings"]["vocabulary"], schema["settings"]["train"]) == (5, 4, 50)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the command must be export, got nothing"),
        (["import", "data=bag"], "the command must be export, got import: did you mean export?"),
        (["data=bag"], "the command must be export, got data=bag"),
        (["export"], f"data must be one of {', '.join(NAMES)}, got nothing"),
        (["export", "seed=3"], f"data must be one of {', '.join(NAMES)}, got nothing"),
        (
            ["export", "data=bags"],
            f"data='bags': did you mean bag? data must be one of {', '.join(NAMES[:3])} and {len(NAMES) - 3} others; "
            "pe-lab run --help lists all",
        ),
        (["export", "data=bag", "pe=rope"], "export takes data=…, data.<option>=…, seed=… and out=…: got 'pe=rope'"),
        (["export", "data=bag", "out="], "export takes data=…, data.<option>=…, seed=… and out=…: got 'out='"),
        (["export", "data=bag", "bag"], "export takes data=…, data.<option>=…, seed=… and out=…: got 'bag'"),
        (["export", "data=bag", "data.train=0"], "data.train must be an integer of at least 1, got 0"),
        (["export", "data=bag", "seed=-1"], "seed must be an integer of at least 0, got -1"),
        (["export", "data=pattern", "data.length=20"], "data.length must be at least 21, to hold every pair, got 20"),
        (
            ["export", "data=pattern", "data.path=nowhere.csv"],
            "data.path must be a file to read, got 'nowhere.csv' (No such file or directory)",
        ),
    ],
)
def test_a_wrong_word_is_answered_in_one_line(words, message, tmp_path, monkeypatch, program) -> None:
    monkeypatch.chdir(tmp_path)
    assert program(main, *words) == (1, [], f"error: {message}\n")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["data=bag", "data.size=3"], "size"),
        (["data=bag,pattern"], "data"),
        (["data=bag", "seed=x"], "seed"),
        (["data=bag", "seed=1,2"], "seed"),
        (["data=bag", "--fast"], "--fast"),
        (["data=bag", "data.train=[3]"], "data.train must be an integer of at least 1, got [3]"),
    ],
)
def test_what_hydra_refuses_is_one_line_too(words, part, tmp_path, monkeypatch, program) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = program(main, "export", *words)
    assert (status, out) == (1, [])
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert part in err


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, program) -> None:
    (tmp_path / "file").write_text("")
    status, _, err = program(main, "export", "data=bag", f"out={tmp_path / 'file'}")
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith(f"error: out must be a folder that can be written to, got {str(tmp_path / 'file')!r}")


def test_a_wrong_word_is_answered_before_torch_is_loaded() -> None:
    script = (
        "import sys; from pe_lab.data import __main__ as program\n"
        "sys.argv[1:] = ['export', 'data=bag', 'data.train=0']\n"
        "try: program.main()\nexcept SystemExit as end: assert end.code == 1\n"
        "assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "error: data.train must be an integer of at least 1, got 0\n")


def test_the_command_as_a_user_calls_it(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pe_lab.data", "export", "data=pattern"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        *(f"exports/pattern/{name}" for name in ("pattern.csv", "pattern.npz", "schema.json")),
        "train 5,000, validation 1,000, test 1,000, demo 100",
    ]
    first = (tmp_path / "exports/pattern/pattern.csv").read_text().splitlines()[:2]
    assert first[0] == "split,tokens,label"
    assert re.fullmatch(r"train,\d+( \d+){31},[012]", first[1])
