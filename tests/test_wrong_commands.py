"""What a new user types wrongly is refused in one line that names it, before anything is computed."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from pe_lab import cli

WRONG = {  # with what the line must mention
    "runn": ["did you mean run?"],
    "ledger verfy": ["did you mean verify?"],
    "ledger verify .": ["LEDGER"],
    "ledger prune .": ["LEDGER"],
    "run pe=alibbi": ["did you mean alibi?"],
    "run -m pe=rope,alibbi": ["did you mean alibi?"],
    "run --pe alibi": ["pe=alibi"],
    "run --pe=alibi": ["pe=alibi"],
    "run -pe alibi": ["pe=alibi"],
    "run --epochs 3 pe=rope": ["epochs=3"],
    "run --multirunn pe=rope": ["did you mean --multirun?"],
    "run rope": ["pe=rope"],
    "run pe": ["pe"],
    "run pe=": ["pe"],
    "run pe=rope,alibi": ["-m"],
    "run pe=ropé": ["pe=ropé"],
    "run эпохи=3": ["эпохи"],
    "run pe=rope]": ["pe=rope]"],
    "run pe=cope data=bag": ["pe=cope", "data=bag"],
    "run model.depth=0": ["model.depth", "0"],
    "run model.dpeth=2": ["did you mean depth?"],
    "run epochs=1.5": ["epochs", "1.5"],
    "run seed=-1": ["seed", "-1"],
    "run trainer.batch_size=0": ["trainer.batch_size", "0"],
    "run trainer.precision=bf16-mixd": ["trainer.precision", "did you mean bf16-mixed?"],
    "run study=bag": ["+study=bag"],
    "run +study=nosuch": ["study", "nosuch"],
    "run +study=depth_epochs_pe": ["-m"],
    "run -m +study=depth_epoch_pe": ["did you mean depth_epochs_pe?"],
    "run ledger=/proc/x": ["ledger", "/proc/x"],
    "run notasetting=3": ["notasetting"],
    "run epoch=3": ["did you mean epochs?"],
    "run learning_rate=3e-3": ["did you mean optimizer.lr?"],
    "run num_hidden_layers=3": ["did you mean model.depth?"],
    "run -m 'seed=range('": ["seed=range(", "bracket"],
    "run optimizer=lion": ["optimizer", "adam"],
    "run optimizer.name=rmsprop optimizer._target_=torch.optim.RMSprop": ["optimizer.betas"],
    "run --config-dir conf model=mine": ["model/mine.yaml", "did you mean depth?"],
    "run --config-dir conf trainer=mine": ["trainer/mine.yaml", "did you mean batch_size?"],
    "run --config-dir conf optimizer=mine": ["optimizer.warmup_steps"],
    "run --help nosuch": ["nosuch", "run --help all"],
    "run --help learning_rate": ["did you mean optimizer.lr?"],
    "evaluate pe=rope": ["ledger"],
    "evaluate pe=rope evaluate.policy=yarnn": ["did you mean yarn?"],
    "evaluate pe=rope probe=positon": ["did you mean position?"],
    "report firts": ["did you mean first?"],
    "report nosuch": ["first", "nosuch"],
    "report first --study second": ["--study"],
    "status nosuch": ["LEDGER", "nosuch"],
    "status --stduy x": ["did you mean --study?"],
    "audit out=/proc/x pe=none": ["out", "/proc/x"],
    "audit --pe rope": ["pe=rope"],
    "audit pee=rope": ["did you mean pe?"],
    "check data=bga": ["did you mean bag?"],
    "data exprot data=bag": ["did you mean export?"],
    "data export data=bag out=/proc/x": ["out", "/proc/x"],
    "gallery --out /proc/x": ["--out", "/proc/x"],
    "benchmark casual_text": ["did you mean causal_text?"],
    "benchmark copy --export out": ["copy", "--export"],
    "benchmark --repalce": ["did you mean --replace?"],
    "benchmark --export /proc/x": ["--export", "/proc/x"],
    "benchmark --pack fifo": ["--pack", "fifo"],
}
OWN = {
    "conf/model/mine.yaml": "defaults: [base]\ndpeth: 3\n",
    "conf/trainer/mine.yaml": "defaults: [default]\nbatchsize: 3\n",
    "conf/optimizer/mine.yaml": "_target_: torch.optim.SGD\nname: mine\nlr: 1\nweight_decay: 0\nschedule: cosine\n",
    "ledger/studies/first/rows.csv": "",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with configs and a study of a user."""
    folder = tmp_path_factory.mktemp("wrong")
    for name, text in OWN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    os.mkfifo(folder / "fifo")
    return folder


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_is_refused_in_one_line_before_anything_is_computed(
    folder: Path, line: str, program: Callable[..., tuple[int, list[str], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    status, lines, error = program(cli.main, *shlex.split(line))
    assert (status, lines, error.count("\n")) == (1, [], 1)
    assert error.startswith("error: ")
    assert all(part in error for part in WRONG[line]), error
    hint = error.find("did you mean")
    assert hint < 250, "the nearest name comes after a list"
    assert not [*folder.glob("ledger/*/run.json")]


def test_an_option_that_is_like_none_is_given_no_guess(program: Callable[..., tuple[int, list[str], str]]) -> None:
    """What two options have in common is more than their dashes."""
    _, _, error = program(cli.main, "benchmark", "--task", "copy")
    assert "--task" in error
    assert "did you mean" not in error
