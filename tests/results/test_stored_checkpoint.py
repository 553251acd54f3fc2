"""Settings that somebody else wrote are plain data: nothing in them is executed, read or sent."""

import json
import os
import pickle
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import wandb
from omegaconf import OmegaConf

from benchmarks.ledger import identity, record_checkpoint
from helpers.paged import text_of
from pe_lab import config
from pe_lab.ledger import __main__ as upkeep
from pe_lab.ledger.ledger import Ledger
from pe_lab.report import __main__ as report
from pe_lab.results import sync
from pe_lab.results.stored_checkpoint import read_checkpoint_settings
from pe_lab.system.files import CHECKSUMS_FILE
from pe_lab.system.plain import plain_data_error, read_yaml
from pe_lab.tracking.wandb_config import flat_settings

SECRET = "5ec2e7-hush-hush"
SOUND = OmegaConf.to_yaml(
    config.expand_overrides(["pe=rope", "data=pattern", "logger=wandb"], multirun=False)[0], resolve=True
)


def replaced(leaf: str, block: str) -> str:
    """Return the sound config with one setting replaced by a block, or with the block added."""
    lines = SOUND.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith(f"{leaf}:")), len(lines))
    end = next((n for n in range(start + 1, len(lines)) if not lines[n].startswith(" ")), len(lines))
    return "\n".join([*lines[:start], *block.splitlines(), *lines[end:], ""])


PATTERN = "data:\n  _target_: pe_lab.data.pattern.Pattern\n  _partial_: true\n  name: pattern\n"
ROPE = "pe:\n  _target_: pe_lab.encodings.rotary.RoPE\n  _partial_: true\n  name: rope\n"
RANDOM = "pe:\n  _target_: pe_lab.encodings.randomized.Randomized\n  _partial_: true\n  name: randomized_rope\n"
EVIL = PATTERN + "  path: ${{evil}}\nevil:\n"
MINE = "data:\n  _target_: evil_module.Data\n  name: mine\n"

# setting and block, by what is attempted; {evil} is a pickle that makes a file at {marker}
ATTACKS = {
    # interpolations
    "torch.load through an interpolation": (
        "data",
        EVIL + "  _target_: torch.load\n  f: {evil}\n  weights_only: false",
    ),
    "pandas through an interpolation": ("data", EVIL + "  _target_: pandas.read_pickle\n  filepath_or_buffer: {evil}"),
    "joblib through an interpolation": ("data", EVIL + "  _target_: joblib.load\n  filename: {evil}"),
    "a file through an interpolation": (
        "data",
        EVIL + "  _target_: pathlib.Path.write_text\n  _args_: [{{_target_: pathlib.Path, _args_: ['{marker}']}}, x]",
    ),
    "a shell through a relative interpolation": (
        "data",
        EVIL.replace("${{evil}}", "${{..evil}}") + "  _target_: os.system\n  command: touch {marker}",
    ),
    "a module through an interpolation": ("data", EVIL + "  _target_: evil_module.Data"),
    "the environment as a name of a study": ("study_name", "study_name: ${{oc.env:SECRET_TOKEN}}"),
    "the environment in a text": ("ledger", "ledger: before ${{oc.env:SECRET_TOKEN}} after"),
    "the environment with a default": ("study_name", "study_name: ${{oc.env:NOWHERE,${{oc.env:SECRET_TOKEN}}}}"),
    "the environment as a name": ("pe", ROPE.replace("name: rope", "name: ${{oc.env:SECRET_TOKEN}}")),
    "the environment as a number": ("model", "model:\n  depth: ${{oc.decode:${{oc.env:SECRET_TOKEN}}}}"),
    "a target out of the environment": ("data", PATTERN.replace("pe_lab.data.pattern.Pattern", "${{oc.env:EVIL}}")),
    "a relative interpolation": ("data", PATTERN + "  path: ${{..logger.project}}"),
    "an interpolation in a list": ("evaluate", "evaluate:\n  lengths: [1, '${{oc.env:SECRET_TOKEN}}']"),
    "an interpolation in a key": ("data", PATTERN + "  ${{oc.env:SECRET_TOKEN}}: 1"),
    "an interpolation in an interpolation": ("ledger", "ledger: ${{${{oc.env:SECRET_TOKEN}}}}"),
    "an escaped interpolation": ("ledger", "ledger: \\${{oc.env:SECRET_TOKEN}}"),
    "an interpolation behind backslashes": ("ledger", "ledger: \\\\${{oc.env:SECRET_TOKEN}}"),
    "an interpolation in YAML's escapes": ("ledger", 'ledger: "\\x24\\x7boc.env:SECRET_TOKEN}}"'),
    "an interpolation over two lines": ("ledger", 'ledger: "$\\\n  {{oc.env:SECRET_TOKEN}}"'),
    "an interpolation in a block": ("ledger", "ledger: |\n  ${{oc.env:SECRET_TOKEN}}"),
    "half an interpolation": ("ledger", "ledger: ${{"),
    "a resolver that nobody registered": ("optimizer", "optimizer:\n  lr: ${{tuned_rate:{evil}}}"),
    "a resolver that makes a tree": ("data", "data: ${{oc.create:'{{_target_: os.system}}'}}"),
    "a resolver of Hydra": ("ledger", "ledger: ${{hydra:runtime.cwd}}"),
    "an interpolation in a user's own leaf": ("data", MINE + "  path: ${{oc.env:SECRET_TOKEN}}"),
    # targets
    "a target at the top": ("_target_", "_target_: os.system\ncommand: touch {marker}"),
    "a leaf that is not ours": ("evil", "evil:\n  _target_: os.system\n  command: touch {marker}"),
    "a function in the place of the dataset": ("data", "data:\n  _target_: os.system\n  command: touch {marker}"),
    "a function under a name of ours": ("data", PATTERN.replace("pe_lab.data.pattern.Pattern", "torch.load")),
    "a function that the lab's module imports": (
        "data",
        PATTERN.replace("pe_lab.data.pattern.Pattern", "pe_lab.run.os.system") + "  command: touch {marker}",
    ),
    "another class of the lab": (
        "data",
        PATTERN.replace("pe_lab.data.pattern.Pattern", "pe_lab.training.graph.CapturedStep"),
    ),
    "a subclass of the class": ("data", PATTERN.replace("pattern.Pattern", "pattern.PatternHard")),
    "a class of ours under another's package": ("data", PATTERN.replace("pe_lab.", "pe_lab_of_mine.")),
    "a path that leads on": ("data", PATTERN.replace("Pattern\n", "Pattern.__init__.__globals__\n")),
    "a path with a dot too many": ("data", PATTERN.replace("pe_lab.data", "pe_lab..data")),
    "a target that is a list": ("data", PATTERN.replace("pe_lab.data.pattern.Pattern", "[os.system]")),
    "a target that is a dict": ("data", PATTERN.replace("pe_lab.data.pattern.Pattern", "{{_target_: os.system}}")),
    "a target that is nothing": ("data", PATTERN.replace("pe_lab.data.pattern.Pattern", "null")),
    "a target that is a number": ("data", PATTERN.replace("pe_lab.data.pattern.Pattern", "7")),
    "a user's own target that is no path": ("data", MINE.replace("evil_module.Data", "'os.system(1)'")),
    "a nested target": ("data", PATTERN + "  x: {{_target_: os.system, command: touch {marker}}}"),
    "a nested target in lists": ("data", PATTERN + "  x: [[{{_target_: os.system, command: touch {marker}}}]]"),
    "a target in the model": ("model", "model:\n  depth: 1\n  x: {{_target_: os.system, command: touch {marker}}}"),
    "a target in a list of settings": ("probe", "probe: [{{_target_: os.system, command: touch {marker}}}]"),
    "a target in a logger": ("logger", "logger:\n  wandb:\n    _target_: os.system\n    _partial_: true"),
    "a target in the logger of an earlier version": (
        *("logger", "logger:\n  _target_: os.system\n  _partial_: true\n  name: wandb"),
    ),
    "a target within an encoding": (
        "pe",
        RANDOM + "  encoding: {{_target_: os.system, command: touch {marker}}}",
    ),
    "a function within an encoding under our name": (
        "pe",
        RANDOM + "  encoding: {{_target_: pe_lab.run.main, _partial_: true, name: rope}}",
    ),
    "an encoding within an encoding that calls": (
        "pe",
        RANDOM + "  encoding:\n    _target_: pe_lab.encodings.rotary.RoPE\n    _partial_: true\n    name: rope\n"
        "    theta: {{_target_: os.system, command: touch {marker}}}",
    ),
    # other keys and texts that Hydra or W&B act on
    "positional arguments": ("data", PATTERN + "  _args_: ['touch {marker}']"),
    "called at once": ("data", PATTERN.replace("_partial_: true", "_partial_: false")),
    "without recursion": ("data", PATTERN + "  _recursive_: false"),
    "converted": ("data", PATTERN + "  _convert_: object"),
    "an artifact on another's server": ("ledger", "ledger: wandb-artifact://http://127.0.0.1:9/a/b/c:v0"),
    "an artifact of W&B": ("data", MINE + "  _type: artifactVersion\n  id: QXJ0aWZhY3Q6MQ=="),
    # YAML
    "a tag that calls": ("data", "data: !!python/object/apply:os.system ['touch {marker}']"),
    "a tag that makes an object": ("data", "data: !!python/object:pe_lab.data.pattern.Pattern {{}}"),
    "a tag that imports": ("data", "data: !!python/module:evil_module"),
    "a tag that OmegaConf follows": ("ledger", "ledger: !!python/object/apply:pathlib.PosixPath [/etc]"),
    "a tag of one's own": ("data", "data: !evil {{x: 1}}"),
    "a tag behind a directive": ("whole", "%TAG ! tag:yaml.org,2002:python/\n---\n!object/apply:os.system ['x']"),
    "a text with a tag": ("ledger", "ledger: !!str x"),
    "bytes": ("ledger", "ledger: !!binary AAAA"),
    "an anchor and its alias": ("ledger", "ledger: &x y\nstudy_name: *x"),
    "an anchor alone": ("ledger", "ledger: &x y"),
    "an alias of what is around it": ("data", "data: &x\n  y: *x"),
    "a merge": ("data", PATTERN + "  <<: {{_target_: os.system}}"),
    "a key that stands twice": ("data", PATTERN + "  _target_: os.system"),
    "a leaf that stands twice": ("evil", PATTERN),
    "a number as a key": ("data", PATTERN + "  1: x"),
    "a list as a key": ("data", PATTERN + "  ? [a]\n  : x"),
    "null as a key": ("data", PATTERN + "  ~: x"),
    "a bomb of aliases": (
        "evil",
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    ),
    "lists in lists": ("data", "data: " + "[" * 5000 + "]" * 5000),
    "dicts in dicts": ("data", "data: " + "{{a: " * 5000 + "1" + "}}" * 5000),
    "lines of lists": ("data", "data:\n" + "".join(f"{' ' * n}-\n" for n in range(1, 500))),
    "too large": ("ledger", "ledger: " + "x" * 300_000),
    "a number of many digits": ("seed", "seed: " + "9" * 5000),
    "two documents": ("evil", "---\nevil: 1"),
    "no YAML": ("data", "data: [1, 2"),
    "a list": ("whole", "[1, 2]"),
    "a text": ("whole", "evil"),
    "nothing": ("whole", ""),
    "a control character": ("ledger", "ledger: \x1b[2J"),
    # not the settings of a cell
    "no name": ("pe", ROPE.replace("  name: rope\n", "")),
    "a name that is a path": ("data", PATTERN.replace("name: pattern", "name: ../../pattern")),
    "a study that is a path": ("study_name", "study_name: ../outside"),
    "a study that is a list": ("study_name", "study_name: [a]"),
    "a depth that is a text": ("model", "model:\n  depth: many"),
    "a leaf that is a text": ("data", "data: pattern"),
}
RAW = {
    "no UTF-8": SOUND.encode() + b"ledger: \xff\xfe\n",
    "UTF-16": SOUND.encode("utf-16"),
    "a null byte": SOUND.encode() + b"\0",
    "a pickle": pickle.dumps({"data": 1}),
}


@pytest.fixture(autouse=True)
def _watched(monkeypatch, tmp_path) -> Iterator[None]:
    """Fail when a FIFO is waited for, a server is contacted or a foreign module is imported."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("SECRET_TOKEN", SECRET)
    monkeypatch.setenv("EVIL", "os.system")
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a server was looked for"))
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert not (tmp_path / "executed").exists()


@pytest.fixture
def checkpoint(tmp_path, sign) -> Path:
    """A checkpoint with the sound config."""
    training_run = Ledger(tmp_path / "ledger").run(identity({"name": "rope"}))
    checkpoint = record_checkpoint(training_run, 4, 1.0)
    summary = json.loads((checkpoint / "summary.json").read_text()) | {"name": "rope-d1-e4-s0", "steps": 36}
    summary |= {"tokens_per_sequence": 16}
    (checkpoint / "summary.json").write_text(json.dumps(summary))
    (checkpoint / "config.yaml").write_text(SOUND)
    sign(checkpoint)
    return checkpoint


@pytest.fixture
def opened(monkeypatch) -> list[dict]:
    """Collect the arguments of wandb.init, which opens nothing."""
    asked: list[dict] = []

    def refuse(**given):
        asked.append(given)
        raise wandb.errors.CommError("it is only asked for")

    monkeypatch.setattr(wandb, "init", refuse)
    return asked


def test_the_settings_of_a_cell_are_logged_unchanged(checkpoint, program, opened):
    """The other tests change this config."""
    status, out, err = program(sync.main, checkpoint.parents[2])
    assert (status, out) == (1, ["0 of 1 runs are in W&B, offline, project pe_lab"])
    assert err == "rope-d1-e4-s0: W&B did not start, the ledger has the run: it is only asked for\n"
    (run,) = opened
    sound = OmegaConf.to_container(OmegaConf.create(SOUND))
    assert run["config"] == sound | flat_settings(sound) | {"attention_resolved": "sdpa"}


def refused(checkpoint: Path, program: Callable, opened: list[dict]) -> str:
    """Return the line with which sync refuses the checkpoint."""
    status, out, err = program(sync.main, checkpoint.parents[2])
    assert (status, out[0]) == (1, "0 of 1 runs are in W&B, offline, project pe_lab")
    (line,) = err.splitlines()
    assert line.startswith(f"skipped: {checkpoint.parents[1].name}, 4 epochs: ledger entry {checkpoint}")
    assert SECRET not in line
    assert line.isprintable()
    assert len(line) < 1000
    assert opened == []
    return line


@pytest.mark.parametrize(("leaf", "block"), ATTACKS.values(), ids=ATTACKS)
def test_a_config_that_is_more_than_plain_data_is_a_damaged_entry(
    leaf, block, checkpoint, program, opened, tmp_path, sign, evil
):
    (tmp_path / "evil.pt").write_bytes(evil(tmp_path / "executed"))
    text = block.format(evil=tmp_path / "evil.pt", marker=tmp_path / "executed")
    (checkpoint / "config.yaml").write_text(text if leaf == "whole" else replaced(leaf, text))
    sign(checkpoint)
    assert f"{checkpoint / 'config.yaml'} must " in refused(checkpoint, program, opened)


@pytest.mark.parametrize("content", RAW.values(), ids=RAW)
def test_a_config_that_is_not_text_is_a_damaged_entry(content, checkpoint, program, opened, sign):
    (checkpoint / "config.yaml").write_bytes(content)
    sign(checkpoint)
    assert f"{checkpoint / 'config.yaml'} must be YAML" in refused(checkpoint, program, opened)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def deep(path: Path) -> None:
    path.write_text('{"a":' * 300 + "1" + "}" * 300, encoding="utf-8")


def endless(path: Path) -> None:
    path.write_text("[" * 100_000, encoding="utf-8")


def infinite(path: Path) -> None:
    path.write_text('{"a": 1e999}', encoding="utf-8")


@pytest.mark.parametrize("make", [pipe, device])
@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "metrics.csv", CHECKSUMS_FILE])
def test_what_is_not_a_file_is_not_waited_for(name, make, checkpoint, program, opened, tmp_path):
    """Also when the checksums do not list it."""
    sums = json.loads((checkpoint / CHECKSUMS_FILE).read_text())
    sums.pop(name, None)
    (checkpoint / CHECKSUMS_FILE).write_text(json.dumps(sums))
    make(checkpoint / name)
    status, _, err = program(sync.main, checkpoint.parents[2])
    assert (status, len(err.splitlines())) == (1, 1)
    assert str(checkpoint) in err
    assert opened == []
    program(report.main, checkpoint.parents[2], "--out", tmp_path / "out")


@pytest.mark.parametrize("make", [pipe, device, deep, endless, infinite])
@pytest.mark.parametrize(
    "name", ["run.json", "checkpoints/4/checksums.json", "checkpoints/4/summary.json", "cost.json"]
)
@pytest.mark.parametrize("main", [sync.main, report.main, upkeep.main])
def test_json_that_cannot_be_read_is_an_error_in_one_line(name, make, main, checkpoint, program, opened, sign):
    path = checkpoint.parents[1] / name
    path.touch()
    make(path)
    if "summary" in name and make not in (pipe, device):
        sign(checkpoint)
    words = ["verify"] if main is upkeep.main else []
    status, out, err = program(main, *words, checkpoint.parents[2])
    assert "Traceback" not in err
    if main is upkeep.main:
        assert (status, str(path.parent) in "\n".join(out)) == (1, True)
    elif main is sync.main and name != "cost.json":
        assert (status, opened) == (1, [])


@pytest.mark.parametrize(
    "others",
    [
        {"name": "${oc.env:SECRET_TOKEN}"},
        {"name": ["rope"]},
        {"name": "\x1b[2J"},
        {"attention": "wandb-artifact://http://127.0.0.1:9/a/b/c:v0"},
        {"attention": {"_type": "artifactVersion", "id": "x"}},
        {"parameters": {"_type": "table-file", "path": "/etc/passwd"}},
        {"steps": "many"},
        {"tokens_per_sequence": "many"},
        {"test": {"loss": "${oc.env:SECRET_TOKEN}"}},
        {"test": 3},
        {"floors": {"bayes": 3}},
        {"floors": [1]},
    ],
    ids=str,
)
def test_a_summary_with_other_values_is_a_damaged_entry(others, checkpoint, program, opened, sign):
    summary = json.loads((checkpoint / "summary.json").read_text())
    (checkpoint / "summary.json").write_text(json.dumps(summary | others))
    sign(checkpoint)
    refused(checkpoint, program, opened)


@pytest.mark.parametrize(
    "pe",
    [{"name": "${oc.env:SECRET_TOKEN}"}, {"name": "rope", "${x}": 1}, {"name": "rope", "x": [["${x}"]]}],
    ids=str,
)
@pytest.mark.parametrize("main", [sync.main, report.main])
def test_an_identity_with_an_interpolation_is_a_damaged_entry(pe, main, checkpoint, program, opened, tmp_path):
    training_run = Ledger(tmp_path / "other").find(identity(pe))
    checkpoint.parents[1].rename(_made(tmp_path / "other") / training_run.name)
    (training_run.folder / "run.json").write_text(json.dumps(identity(pe)))
    (tmp_path / "other" / "format.json").write_text('{"format": 2}')
    _, out, err = program(main, tmp_path / "other")
    page = tmp_path / "other" / "report.html"
    assert SECRET not in "\n".join([*out, err, page.read_text() if page.exists() else ""])
    assert f"{training_run.folder / 'run.json'} must have no interpolation" in (
        err if main is sync.main else text_of(page.read_text())
    )
    assert opened == []


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


HARMLESS = {
    "a pipe": PATTERN + "  path: {folder}/pipe",
    "a device": PATTERN + "  path: /dev/zero",
    "a file outside": PATTERN + "  path: /etc/passwd",
    "a folder that is not there": PATTERN + "  path: ../../nowhere",
    "options of other types": PATTERN + "  length: many\n  train: [1, {{a: b}}]\n  validation: null\n  test: 1.0e+300",
    "a size that no memory has": PATTERN + "  train: 1000000000000",
    "a user's own class": MINE + "  length: 7\n  inner: {{_target_: evil_module.Other, _args_: [1]}}",
    "a function as a user's own class": MINE.replace("evil_module.Data", "os.system") + "  command: touch {folder}/x",
}


@pytest.mark.parametrize("block", HARMLESS.values(), ids=HARMLESS)
def test_the_options_of_a_dataset_are_logged_and_not_executed(block, checkpoint, program, opened, tmp_path, sign):
    """No dataset is instantiated: its options and its class are plain data."""
    os.mkfifo(tmp_path / "pipe")
    text = replaced("data", block.format(folder=tmp_path))
    (checkpoint / "config.yaml").write_text(text)
    sign(checkpoint)
    program(sync.main, checkpoint.parents[2])
    (run,) = opened
    assert run["config"]["data"] == OmegaConf.to_container(OmegaConf.create(text))["data"]
    assert run["config"]["task"] == run["config"]["data"]["name"]


FILES = sorted(path for group in ("pe", "data", "logger") for path in (config.config_folder() / group).glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}={path.stem}")
def test_every_file_of_conf_is_read_as_it_was_written(path, checkpoint, sign):
    cfg, leaf = OmegaConf.create(SOUND), OmegaConf.load(path)
    if "defaults" in leaf:  # of other files
        leaf = config.expand_overrides([f"{path.parent.name}={path.stem}"], multirun=False)[0][path.parent.name]
    cfg[path.parent.name] = {path.stem: leaf} if path.parent.name == "logger" else leaf
    (checkpoint / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    sign(checkpoint)
    (training_run,) = Ledger(checkpoint.parents[2]).runs()
    assert read_checkpoint_settings(training_run, 4) == OmegaConf.to_container(cfg, resolve=True)


TEXTS = [
    *(
        "",
        " ",
        "null",
        "~",
        "true",
        "yes",
        "on",
        "1",
        "-1",
        "+1",
        "007",
        "0x10",
        "0o7",
        "1_000",
        "1:30",
        "1e5",
        "1.",
        ".5",
    ),
    *(
        "inf",
        ".inf",
        "-.inf",
        "nan",
        ".nan",
        "2020-01-01",
        "=",
        "<<",
        "a: b",
        "- a",
        "[a]",
        "{a",
        "#",
        "a #b",
        "'",
        '"',
    ),
    *(
        "\\",
        "\n",
        "a\nb",
        "tab\t",
        "é",
        "日本",
        "*x",
        "&x",
        "!x",
        "%x",
        "@",
        "`",
        "x" * 200,
        "a b " * 60,
        "1e",
        "e5",
        "--1",
    ),
]
NUMBERS = [0, -1, 10**30, 0.0, -0.5, 1e-8, 1e300, 3.0, float("inf"), -float("inf"), True, False, None]


@pytest.mark.parametrize("value", [*TEXTS, *NUMBERS, [], {}, [[], {}], {"a": [1, "1", None]}, {"1": "x", "é": {}}])
def test_values_that_omegaconf_writes_are_read_unchanged(value):
    found = read_yaml(OmegaConf.to_yaml(OmegaConf.create({"a": value})).encode())
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["data=clm", r"data.separator='\${oc.env:SECRET_TOKEN}'"],
        ["+pe.x=[{1:2}]", "pe.name=mine"],
        ["ledger=wandb-artifact://a/b/c"],
    ],
    ids=str,
)
def test_settings_that_could_not_be_read_back_are_refused_before_training(overrides):
    with pytest.raises(ValueError, match="the config must have") as error:
        config.expand_overrides(overrides, multirun=False)
    assert SECRET not in str(error.value)


def test_plain_data_has_no_complaint():
    assert plain_data_error({"a": [1, 2.5, None, True, "$x {y}", {"b": {}}]}) is None
    assert plain_data_error({"a": object()}).startswith("must have numbers, texts, lists and dicts, got <object")


def test_settings_of_earlier_versions_are_left_out(checkpoint, sign):
    (checkpoint / "config.yaml").write_text(f"{SOUND.rstrip()}\nshipped: true\nsearch:\n  rates: [0.001, 0.01, 0.1]\n")
    sign(checkpoint)
    (training_run,) = Ledger(checkpoint.parents[2]).runs()
    assert read_checkpoint_settings(training_run, 4) == OmegaConf.to_container(OmegaConf.create(SOUND), resolve=True)
