"""A malformed folder is refused in one line, whatever is wrong with it."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.hf_models import logits, replaced, tokens
from pe_lab.hf import load

CONFIG, WEIGHTS, INDEX, GENERATION = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "generation_config.json",
)
NEVER = "code of the folder ran"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    replaced("llama", "lrope").save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """End a test that waits for a pipe, and give no answer to a question."""

    def stop(*_: Any) -> None:
        raise TimeoutError("load waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def config(**changes: Any) -> Callable[[Path], None]:
    """Change entries of the configuration; ... leaves one out."""

    def change(folder: Path) -> None:
        described = {**json.loads((folder / CONFIG).read_text()), **changes}
        (folder / CONFIG).write_text(json.dumps({key: x for key, x in described.items() if x is not ...}))

    return change


def recorded(**changes: Any) -> Callable[[Path], None]:
    """Change entries of what `replace` recorded."""

    def change(folder: Path) -> None:
        known = {**json.loads((folder / CONFIG).read_text())["pe_lab"], **changes}
        config(pe_lab={key: x for key, x in known.items() if x is not ...})(folder)

    return change


def text(name: str, content: str | bytes) -> Callable[[Path], None]:
    return lambda folder: (
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content) and None
    )


def pipe(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


def folder_named(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return change


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size]) and None


def mapped(name: str) -> Callable[[Path], None]:
    """Put weights where a weight map must not lead, and let it lead there."""

    def change(folder: Path) -> None:
        outside = folder.parent / "outside.safetensors"
        shutil.copy(folder / WEIGHTS, outside)
        shutil.copy(folder / WEIGHTS, folder / ".hidden.safetensors")
        (folder / WEIGHTS).unlink()
        (folder / INDEX).write_text(json.dumps({"weight_map": {"x": name.format(outside=outside)}}))

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    return lambda folder: save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, {"format": "pt"})


def remote_code(folder: Path) -> None:
    (folder / "mine.py").write_text(f"raise SystemExit({NEVER!r})")
    auto = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    config(auto_map=auto, model_type="mine")(folder)


MALFORMED: dict[str, tuple[Callable[[Path], None], str]] = {
    "no folder": (shutil.rmtree, "without config.json"),
    "no configuration": (without(CONFIG), "without config.json"),
    "a pipe as configuration": (pipe(CONFIG), "config.json must be a regular file"),
    "a folder as configuration": (folder_named(CONFIG), "config.json must be a regular file"),
    "no JSON": (text(CONFIG, "{"), "config.json must be JSON"),
    "no text": (text(CONFIG, b"\xff\xfe\x00"), "config.json must be JSON"),
    "deep JSON": (text(CONFIG, "[" * 100_000), "config.json must be JSON, got RecursionError"),
    "a list as JSON": (text(CONFIG, "[]"), "config.json must have a JSON object, got a list"),
    "remote code": (remote_code, "model_type in config.json must be one of .*, got 'mine'"),
    "no type": (config(model_type=...), "model_type in config.json must be one of .*, got None"),
    "a list as type": (config(model_type=["llama"]), "model_type in config.json must be one of"),
    "another type": (config(model_type="xglm"), "model_type in config.json must be one of .*, got 'xglm'"),
    "a type without its settings": (config(model_type="gpt2"), "architectures .* class of a gpt2 model"),
    "a list as record": (config(pe_lab=["rope"]), "pe_lab in config.json must be an object, got a list"),
    "no record": (config(pe_lab=None), "pe_lab in config.json must be an object, got a NoneType"),
    "no architecture": (config(architectures=...), "architectures .* class of a llama model .*, got None"),
    "empty architectures": (config(architectures=[]), r"architectures .* class of a llama model .*, got \[\]"),
    "a text as architectures": (config(architectures="LlamaForCausalLM"), "architectures .* class of a llama model"),
    "no name of a class": (config(architectures=[3]), "architectures .* class of a llama model"),
    "a class that is no model": (config(architectures=["pipeline"]), "architectures .* class of a llama model"),
    "a class of another type": (config(architectures=["GPT2Model"]), "architectures .* class of a llama model"),
    "a class of no type": (config(architectures=["PreTrainedModel"]), "architectures .* class of a llama model"),
    "no width": (config(hidden_size="wide"), "hidden_size|must describe a model"),
    "no heads": (config(num_attention_heads=0), "config.json must describe a model"),
    "a negative size": (config(vocab_size=-1), "must describe a model, got RuntimeError"),
    "dtype of no kind": (config(dtype="float31"), "float31"),
    "dtype of integers": (config(dtype="int64"), "dtype in config.json must be .* floating-point .* torch.int64"),
    "no rope type": (config(rope_parameters=None, rope_scaling={"rope_type": "mine", "factor": 2.0}), "mine"),
    "no name": (recorded(encoding=...), "encoding of pe_lab in config.json must be of type str, got none"),
    "a number as name": (recorded(encoding=3), "encoding of pe_lab in config.json must be of type str, got 3"),
    "an unknown name": (recorded(encoding="mine"), "name must be one of .*, got 'mine'"),
    "an unknown option": (recorded(options={"base": 3}), "options of lrope must be among .*, got base"),
    "a size as option": (recorded(options={"width": 3}), "options of lrope must not be sizes, .* got width"),
    "an option of another type": (recorded(options={"theta": [1]}), r"theta must be a positive number, got \[1\]"),
    "a list as options": (recorded(options=[]), r"options of pe_lab in config.json must be of type dict, got \[\]"),
    "a text as length": (recorded(length="9"), "length of pe_lab in config.json must be of type int, got '9'"),
    "no length": (recorded(length=0), "length must be an integer of at least 1, got 0"),
    "an unknown implementation": (recorded(implementation="mine"), "implementation must be one of .*, got 'mine'"),
    "a text as switch": (recorded(from_config="no"), "from_config of pe_lab in config.json must be of type bool"),
    "no parts": (recorded(encoding="sum", options={"parts": [[1]]}), "name must be one of"),
    "a pipe as settings": (pipe(GENERATION), "generation_config.json must be a regular file"),
    "a list as settings": (text(GENERATION, "[]"), "generation_config.json must have a JSON object, got a list"),
    "wrong settings": (text(GENERATION, '{"max_new_tokens": "many"}'), "generation_config.json must describe|max_new"),
    "no weights": (without(WEIGHTS), "model.safetensors must be a regular file, got none"),
    "a pipe as weights": (pipe(WEIGHTS), "model.safetensors must be a regular file"),
    "weights cut in the header": (cut(WEIGHTS, 20), "model.safetensors must have safetensors, got"),
    "weights cut in the data": (cut(WEIGHTS, 3_000), "model.safetensors must have safetensors, got"),
    "empty weights": (cut(WEIGHTS, 0), "model.safetensors must have safetensors, got|must be a regular file"),
    "weights of integers": (weights(lambda w: {key: x.long() for key, x in w.items()}), "weights must fit"),
    "a weight less": (weights(lambda w: dict(list(w.items())[1:])), "got none for"),
    "a weight more": (weights(lambda w: {**w, "mine": torch.zeros(1)}), "got mine in"),
    "a weight of another shape": (weights(lambda w: {k: x[:1].clone() for k, x in w.items()}), "weights must fit"),
    "a pipe as index": (pipe(INDEX), "index.json must be a regular file"),
    "no index": (text(INDEX, "{"), "index.json must be JSON"),
    "an index without a map": (text(INDEX, "{}"), "weight_map in .* must be an object with files, got None"),
    "a list as map": (text(INDEX, '{"weight_map": ["x"]}'), "weight_map in .* must be an object with files"),
    "an empty map": (text(INDEX, '{"weight_map": {}}'), "weight_map in .* must be an object with files"),
    "a number in the map": (text(INDEX, '{"weight_map": {"x": 3}}'), "3 must be a regular file, got none"),
    "a map to an absolute path": (mapped("{outside}"), "weight_map in .* must have names of files beside it"),
    "a map outwards": (mapped("../outside.safetensors"), "weight_map in .* must have names of files beside it"),
    "a map inwards and outwards": (mapped("a/../../outside.safetensors"), "must have names of files beside it"),
    "a map to another system's path": (mapped("..\\outside.safetensors"), "must have names of files beside it"),
    "a map to a hidden file": (mapped(".hidden.safetensors"), "weight_map in .* must have names of files beside it"),
    "a map to the folder": (mapped("."), "weight_map in .* must have names of files beside it"),
    "a map to no name": (mapped(""), "weight_map in .* must have names of files beside it"),
    "a map to two lines": (mapped("a\nb"), "weight_map in .* must have names of files beside it"),
    "a map to no file": (mapped("none.safetensors"), "none.safetensors must be a regular file, got none"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_folder_is_refused_in_one_line(case: str, saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    break_it, message = MALFORMED[case]
    break_it(folder)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_code_of_a_folder_does_not_run(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that also names code is loaded without it, and without a question."""
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    remote_code(folder)
    config(model_type="pe_lab_llama")(folder)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asks"))
    assert torch.equal(logits(load(folder), tokens()), logits(load(saved), tokens()))
    assert not hasattr(load(folder).config, "auto_map")


def test_a_weight_in_two_files_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    shutil.copy(folder / WEIGHTS, folder / "again.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"x": WEIGHTS, "y": "again.safetensors"}}))
    with pytest.raises(ValueError, match="weights must be in one file each, got .* again in"):
        load(folder)
