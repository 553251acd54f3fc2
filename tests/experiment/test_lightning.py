"""Arguments of Lightning's Trainer and callbacks on the command line: each works, or is refused before a training."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from helpers.configs import TINY, in_ledger
from helpers.fits import fit
from helpers.power_cut import PowerCutError
from pe_lab import config
from pe_lab.config.trainer_arguments import (
    ALIASES,
    ARGUMENT_NAMES,
    DECIDED_ARGUMENTS,
    TAKEN_ARGUMENTS,
    VALIDATION_ARGUMENTS,
)
from pe_lab.experiment import cell as cell_module
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.job import Job
from pe_lab.system.files import digest
from pe_lab.training.module import Training

STOPS = ["callbacks=early_stopping", "callbacks.early_stopping.patience=2", "callbacks.early_stopping.min_delta=10"]


def cell(*words: str, ledger: Path | None = None) -> Cell:
    return Cell.from_config(in_ledger(ledger, *TINY, "logger=none", *words, multirun=False)[0])


def serve(ledger: Path, *words: str) -> Job:
    job = Job(cell(*words, ledger=ledger))
    job.request()
    job.complete(wait=True)
    return job


def run(*words: str) -> str:
    return digest(cell(*words).identity)


def weights(job: Job) -> dict[str, torch.Tensor]:
    return load_file(job.run.checkpoint(job.cell.target) / "weights.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(x, other[name]) for name, x in one.items())


# -- which arguments ---------------------------------------------------------------------------------------------------


def test_every_argument_of_a_trainer_is_a_setting() -> None:
    known = {"precision", *ARGUMENT_NAMES}
    later = {"model_registry", "enable_autolog_hparams"}  # not in every version of Lightning
    arguments = set(inspect.signature(L.Trainer.__init__).parameters) - {"self"}
    assert arguments <= known
    assert known - arguments <= later


def test_every_argument_is_taken_or_left_to_something_else() -> None:
    assert len(ARGUMENT_NAMES) == len(TAKEN_ARGUMENTS) + len(DECIDED_ARGUMENTS) + len(ALIASES)
    for name in DECIDED_ARGUMENTS:
        for value in ("7", "true"):
            with pytest.raises(ValueError, match=rf"^trainer\.{name} must be left out"):
                config.expand_overrides([f"trainer.{name}={value}"], multirun=False)
    for word in ("trainer.devices=1", "trainer.num_nodes=1", "trainer.strategy=auto"):
        config.expand_overrides([word], multirun=False)


@pytest.fixture(scope="module")
def plain() -> str:
    return run()


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.accumulate_grad_batches=2"],
        ["trainer.gradient_clip_val=0.5"],
        ["trainer.gradient_clip_val=0.5", "trainer.gradient_clip_algorithm=value"],
        ["trainer.limit_train_batches=5"],
        ["trainer.limit_train_batches=0.5"],
        ["trainer.overfit_batches=1"],
        STOPS,
        ["callbacks=early_stopping"],
        ["callbacks=early_stopping", "trainer.check_val_every_n_epoch=2"],
    ],
    ids=" ".join,
)
def test_what_changes_numbers_changes_the_hash(words: list[str], plain: str) -> None:
    assert run(*words) not in {plain, *(run(*words[:count]) for count in range(1, len(words)))}


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.accumulate_grad_batches=1"],
        ["trainer.benchmark=true"],
        ["trainer.detect_anomaly=true"],
        ["trainer.deterministic=true"],
        ["trainer.default_root_dir=elsewhere"],
        ["trainer.enable_model_summary=true"],
        ["trainer.enable_progress_bar=true"],
        ["trainer.limit_train_batches=1.0"],
        ["trainer.log_every_n_steps=3"],
        ["trainer.accelerator=cpu"],
        ["trainer.max_epochs=4"],
        ["trainer.max_time=00:01:00:00"],
        ["trainer.profiler=simple"],
        ["trainer.reload_dataloaders_every_n_epochs=1"],
        ["callbacks=[learning_rate_monitor,model_checkpoint]"],
        ["callbacks=model_checkpoint", "trainer.limit_val_batches=0.5"],
    ],
    ids=" ".join,
)
def test_what_does_not_change_numbers_leaves_the_hash(words: list[str], plain: str) -> None:
    assert run(*words) == plain


def test_clipping_by_lightnings_name_is_that_of_the_lab() -> None:
    assert run("trainer.gradient_clip_val=0.5") == run("trainer.clip=0.5")
    assert config.expand_overrides(["trainer.max_steps=5"], multirun=False)[0].steps == 5
    assert config.expand_overrides(["trainer.accelerator=gpu"], multirun=False)[0].trainer.device == "cuda"
    swept = config.expand_overrides(["trainer.max_epochs=1,2"], multirun=True)
    assert [cfg.epochs for cfg in swept] == [1, 2]


def test_settings_that_are_kept_have_arguments_that_are_given() -> None:
    assert not ARGUMENT_NAMES & cell().settings()["trainer"].keys()
    assert cell("trainer.max_time=00:01:00:00").settings()["trainer"]["max_time"] == "00:01:00:00"


OWN = "import lightning as L\nclass Mine(L.Callback):\n    def on_fit_start(self, trainer, module):\n        {}\n"


def test_the_source_of_a_callback_of_ones_own_is_part_of_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf" / "callbacks").mkdir(parents=True)
    (tmp_path / "conf" / "callbacks" / "own.yaml").write_text("# @package callbacks.own\n_target_: own_one.Mine\n")
    for name, line in (("own_one", "pass"), ("own_two", "print()")):
        (tmp_path / f"{name}.py").write_text(OWN.format(line))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PE_LAB_CONFIG_DIR", str(tmp_path / "conf"))
    (one,) = config.expand_overrides([*TINY, "callbacks=own"], multirun=False)
    found = Cell.from_config(one).identity["callbacks"]["own"]
    assert found["class"] == "own_one.Mine"
    one.callbacks.own._target_ = "own_two.Mine"
    assert Cell.from_config(one).identity["callbacks"]["own"]["source"] != found["source"]


REFUSED = {
    "another class": (["trainer._target_=mine.Trainer"], "trainer._target_ must be lightning.Trainer"),
    "an unknown argument": (["+trainer.nonsense=1"], "trainer has the settings "),
    "a profiler that is not there": (["trainer.profiler=simpel"], "trainer.profiler='simpel' must be "),
    "a time that is none": (["trainer.max_time=soon"], "trainer.max_time='soon' must be "),
    "clipping by nothing": (["trainer.gradient_clip_algorithm=value"], "trainer.gradient_clip_algorithm=value needs "),
    "no batch": (["trainer.limit_train_batches=0.01"], "trainer.limit_train_batches must leave a batch"),
    "two limits": (["trainer.limit_train_batches=2", "trainer.overfit_batches=2"], "trainer.limit_train_batches must "),
    "two lengths": (["trainer.max_epochs=2", "epochs=3"], "trainer.max_epochs is another name of epochs=3 "),
    "a length of both kinds": (["trainer.max_epochs=2", "steps=3"], "epochs or steps must be given"),
    "a name that is no number": (["trainer.max_epochs=many"], "trainer.max_epochs must be "),
    "a setting that a callback does not take": (
        ["callbacks=early_stopping", "+callbacks.early_stopping.hope=1"],
        "callbacks.early_stopping must be settings of lightning.",
    ),
    "a class that is no callback": (
        ["callbacks=[]", "+callbacks.mine={_target_: collections.OrderedDict}"],
        "callbacks.mine._target_ must be derived from lightning.Callback",
    ),
    "a package that is not there": (["+callbacks.mine={_target_: nowhere.Mine}"], "callbacks.mine._target_ must be "),
    "a graph that accumulates": (
        ["trainer.graph=true", "trainer.accumulate_grad_batches=2"],
        "trainer.graph=true cannot be used with accumulate_grad_batches",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_in_one_line_before_a_training(name: str) -> None:
    words, start = REFUSED[name]
    with pytest.raises(ValueError, match="^" + start.replace(".", r"\.")) as raised:
        cell(*words)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", VALIDATION_ARGUMENTS)
def test_arguments_of_the_validation_that_nothing_reads_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^trainer\.{name} needs callbacks"):
        cell(f"trainer.{name}={'false' if name == 'inference_mode' else 2}")


class ReadsGradients(L.Callback):
    def on_before_optimizer_step(self, *_: Any) -> None:
        """Is called in every step."""


def test_what_a_graph_cannot_honour_is_trained_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_module, "refusal_reason", lambda *_: None)  # as on a GPU
    assert cell().graph
    assert cell("callbacks=[learning_rate_monitor]").graph
    assert not cell("trainer.accumulate_grad_batches=2").graph
    assert not cell(f"+callbacks.mine={{_target_: {__name__}.ReadsGradients}}").graph


# -- trainings ---------------------------------------------------------------------------------------------------------


def test_arguments_have_the_bits_of_a_trainer_with_them(tmp_path: Path) -> None:
    """Five batches an epoch, of which two, two and one make steps of values that are clipped."""
    given = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.001, "gradient_clip_algorithm": "value"}
    given |= {"limit_train_batches": 5}
    job = serve(tmp_path, "epochs=2", *(f"trainer.{name}={value}" for name, value in given.items()))
    own = cell("epochs=2").lightning_module()
    fit(own, max_epochs=2, **given)
    assert same(weights(job), own.model.state_dict())
    rows = pd.read_csv(job.run.checkpoint(2) / "metrics.csv")
    assert job.run.summary(2)["steps"] == 6
    assert rows[rows["metric"] == "objective"]["step"].tolist() == [3, 6]
    assert not same(weights(serve(tmp_path / "other", "epochs=2")), own.model.state_dict())


@pytest.mark.long
def test_early_stopping_ends_a_run_once_and_at_the_same_step_after_any_break(
    tmp_path: Path, before_steps: Callable
) -> None:
    """It ends after the third epoch: of three evaluations without a gain of 10, two count."""
    whole = serve(tmp_path / "whole", *STOPS, "epochs=6")
    assert whole.run.summary(6)["steps"] == 27
    assert serve(tmp_path / "whole", *STOPS, "epochs=9").run.summary(9)["steps"] == 27
    parts = tmp_path / "parts"
    for epochs in (1, 3, 6):
        assert serve(parts, *STOPS, f"epochs={epochs}").run.summary(epochs)["steps"] == min(9 * epochs, 27)
    assert same(weights(serve(parts, *STOPS, "epochs=6")), weights(whole))

    for at in (9, 10, 18, 19):
        broken = tmp_path / f"broken {at}"

        def cut(training: Training, _: object, at: int = at) -> None:
            if training.step == at:
                raise PowerCutError

        before_steps(cut)
        with pytest.raises(PowerCutError):
            serve(broken, *STOPS, "epochs=6", "trainer.save_every=0")
        before_steps(None)
        again = serve(broken, *STOPS, "epochs=6", "trainer.save_every=0")
        assert again.run.summary(6)["steps"] == 27
        assert same(weights(again), weights(whole))


def test_callbacks_log_and_write_without_pickles_and_leave_the_training(tmp_path: Path) -> None:
    words = ["callbacks=[learning_rate_monitor,model_checkpoint]", "logger=csv", "trainer.log_every=1", "epochs=2"]
    job = serve(tmp_path, *words)
    assert same(weights(job), weights(serve(tmp_path / "other", "epochs=2")))
    (file,) = (tmp_path / "csv").rglob("metrics.csv")
    rates = pd.read_csv(file)["lr-Adam"].dropna()
    assert set(rates) == {0.001}
    assert len(rates) == 18
    written = [path for path in (tmp_path / "callbacks" / job.run.name).rglob("*") if path.is_file()]
    assert len(written) >= 2
    for path in written:
        assert set(torch.load(path, weights_only=True)) if path.suffix == ".pt" else load_file(path)


@pytest.mark.long
def test_a_limit_on_time_ends_a_training_that_a_longer_one_continues(tmp_path: Path) -> None:
    for seconds in (0, 0.001, 0.001):  # before the first step, after it, and with nothing left
        with pytest.raises(RuntimeError, match=r"^trainer\.max_time="):
            serve(tmp_path, "epochs=2", f"trainer.max_time={{seconds: {seconds}}}")
        job = Job(cell("epochs=2", ledger=tmp_path))
        assert job.failure is not None
        assert (job.run.states.newest() is not None) == (seconds > 0)
    assert same(weights(serve(tmp_path, "epochs=2")), weights(serve(tmp_path / "other", "epochs=2")))


def test_modes_of_the_whole_process_end_with_the_training(tmp_path: Path) -> None:
    before = torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    serve(tmp_path, "steps=1", "trainer.deterministic=true", "trainer.detect_anomaly=true")
    assert torch.are_deterministic_algorithms_enabled() == before[0]
    assert not torch.backends.cudnn.benchmark
    assert not torch.is_anomaly_enabled()


def test_deterministic_algorithms_that_only_warn_still_only_warn_after_the_training(tmp_path: Path) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        serve(tmp_path, "steps=1", "trainer.deterministic=true")
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
