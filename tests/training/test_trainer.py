"""A cell's module and data with a Trainer of one's own: the cell of the command line, and Lightning's habits."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    DeviceStatsMonitor,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import load_file
from torch import Tensor

from helpers.configs import TINY, in_ledger
from helpers.fits import fit, trainer
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.job import Job
from pe_lab.training.checkpoints import SafeTensorsIO
from pe_lab.training.data import BatchOrder
from pe_lab.training.module import Training

SCHEDULED = ["optimizer=adamw", "optimizer.schedule=cosine", "optimizer.warmup_steps=3", "trainer.clip=0.5"]
STEPS = 9  # of an epoch

pytestmark = pytest.mark.filterwarnings(  # Lightning's advice
    "ignore:.*does not have many workers",
    "ignore:.*smaller than the logging interval",
    "ignore:.*by the model summary",
    "ignore:.*callbacks used to create the checkpoint",
    "ignore:.*barebones=True",
)


def cell(*overrides: str, ledger: Path | None = None) -> Cell:
    return Cell.from_config(in_ledger(ledger, *TINY, "logger=none", *overrides, multirun=False)[0])


def weights(module: L.LightningModule) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in module.model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(x, other[name]) for name, x in one.items())


# -- the bits of the command line --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["pe=lrope", "model.dropout=0.1", "model.attention_dropout=0.1", "epochs=2", *SCHEDULED],
        ["pe=randomized_rope", "steps=12", "data=copy", "trainer.fresh=true", "trainer.precision=bf16-mixed"],
    ],
)
def test_a_trainer_of_ones_own_ends_with_the_bits_of_the_command_line(words: list[str], tmp_path: Path) -> None:
    """With Lightning's own logger, checkpoints, sanity check and validation after every epoch."""
    job = Job(cell(*words, ledger=tmp_path / "ledger"))
    job.request()
    job.complete(wait=True)
    checkpoint = job.run.checkpoint(job.cell.target)

    torch.set_num_threads(1)
    made = cell(*words)
    module, data = made.lightning_module(), made.data_module()
    mine = L.Trainer(**made.trainer_arguments(), default_root_dir=tmp_path, logger=CSVLogger(tmp_path))
    mine.fit(module, datamodule=data)
    (test,) = mine.test(module, datamodule=data)

    assert same(load_file(checkpoint / "weights.safetensors"), weights(module))
    assert {f"test/{name}": value for name, value in job.run.summary(job.cell.target)["test"].items()} == pytest.approx(
        test,
        rel=1e-6,  # Lightning keeps metrics in float32
    )
    assert mine.global_step == job.run.summary(job.cell.target)["steps"]


def test_the_example_of_the_documentation_ends_with_the_bits_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    example: dict[str, Any] = {}
    exec(code, example)
    words = page.partition("`pe-lab run ")[2].partition("`")[0].split()
    job = Job.from_config(in_ledger(tmp_path / "ledger", *words, "logger=none", multirun=False)[0])
    assert job.cell.identity == example["cell"].identity
    job.request()
    job.complete(wait=True)
    kept = load_file(job.run.checkpoint(2) / "weights.safetensors")
    assert same(kept, weights(example["module"]))


# -- resume ------------------------------------------------------------------------------------------------------------


class Cut(Callback):
    """Saves a checkpoint after a step and ends the training there."""

    def __init__(self, at: int, path: Path) -> None:
        self.at, self.path = at, path

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == self.at:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


RESUMED = ["pe=lrope", "model.dropout=0.1", "epochs=3", *SCHEDULED]


@pytest.fixture(scope="module")
def whole() -> dict[str, Tensor]:
    made = cell(*RESUMED)
    module = made.lightning_module()
    fit(module, max_epochs=3)
    return weights(module)


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize("plugin", [None, SafeTensorsIO])
@pytest.mark.parametrize("at", [1, 8, 9, 10, 20])
def test_a_training_resumes_from_any_step_with_the_same_bits(
    at: int, plugin: type | None, tmp_path: Path, whole: dict[str, Tensor]
) -> None:
    """From Lightning's own checkpoints, and from those without pickles."""
    made, plugins = cell(*RESUMED), {"plugins": [plugin()] if plugin else []}
    fit(made.lightning_module(), max_epochs=3, callbacks=[Cut(at, tmp_path / "cut.ckpt")], **plugins)
    module = made.lightning_module()
    fit(module, tmp_path / "cut.ckpt", max_epochs=3, limit_val_batches=1.0, **plugins)
    assert same(weights(module), whole)


def test_a_training_resumes_again_and_again_from_the_ends_of_epochs(tmp_path: Path, whole: dict[str, Tensor]) -> None:
    """Each epoch has nine batches."""
    made, path = cell(*RESUMED), None
    for at in (9, 10, 18):
        fit(made.lightning_module(), path, max_epochs=3, callbacks=[Cut(at, tmp_path / f"{at}.ckpt")])
        path = tmp_path / f"{at}.ckpt"
    module = made.lightning_module()
    ended = fit(module, path, max_epochs=3)
    assert same(weights(module), whole)
    assert (ended.current_epoch, ended.global_step) == (3, 3 * STEPS)


def test_a_training_resumes_from_the_last_checkpoint_of_model_checkpoint(
    tmp_path: Path, whole: dict[str, Tensor]
) -> None:
    """At the end of an epoch with validation, and where max_steps has ended the fit in the middle of one."""
    made = cell(*RESUMED)
    for number, ends in enumerate([{"max_epochs": 1}, {"max_epochs": -1, "max_steps": 13}]):
        kept = ModelCheckpoint(tmp_path / str(number), save_last=True, monitor="validation/loss")
        stop = {"limit_val_batches": 1.0, "enable_checkpointing": True}
        fit(made.lightning_module(), callbacks=[kept], val_check_interval=4, **stop, **ends)
        module = made.lightning_module()
        fit(module, kept.last_model_path, max_epochs=-1, max_steps=3 * STEPS)
        assert same(weights(module), whole), ends


@pytest.mark.parametrize("plugin", [None, SafeTensorsIO])
def test_a_module_is_loaded_from_a_checkpoint_with_its_settings(plugin: type | None, tmp_path: Path) -> None:
    made = cell("pe=lrope")
    module = made.lightning_module()
    fit(module, max_steps=2, plugins=[plugin()] if plugin else []).save_checkpoint(tmp_path / "x.ckpt")
    loaded = Training.load_from_checkpoint(tmp_path / "x.ckpt")
    assert same(weights(loaded), weights(module))
    assert loaded.hparams == module.hparams
    assert loaded.model.implementation == made.implementation


# -- several devices ---------------------------------------------------------------------------------------------------


def test_each_batch_is_split_over_the_ranks_and_none_is_lost() -> None:
    one = [index for _, index in BatchOrder(103, 10, seed=3)]
    parts = [[index for _, index in BatchOrder(103, 10, seed=3, rank=rank, ranks=3)] for rank in range(3)]
    for batch, *split in zip(one, *parts, strict=True):
        assert sorted(batch.tolist()) == sorted(torch.cat(split).tolist())
    assert not torch.equal(one[0], next(iter(BatchOrder(103, 10, seed=4)))[1])


def test_an_order_goes_on_from_any_batch() -> None:
    order = BatchOrder(103, 10, seed=3)
    epochs = []
    for epoch in range(3):
        order.set_epoch(epoch)
        epochs += list(order)
    assert len({tuple(index.tolist()) for _, index in epochs}) == 33
    for start in (1, 10, 11, 20):
        order.start = start
        for (epoch, index), (number, expected) in zip(order, epochs[start:], strict=False):
            assert (epoch, index.tolist()) == (number, expected.tolist())


ROUNDED = 1e-3  # of the largest movement of a parameter; Adam's small eps would enlarge differences by rounding
COPY = ["pe=rope", "optimizer.eps=1e-3", "data=copy", "data.train=200", "data.longest=8"]  # 1 to 8 answers a sequence


def distance(one: Training, other: Training, start: Training) -> float:
    """Return the largest difference of a parameter, as a share of its largest movement."""
    results = []
    for name, x in weights(one).items():
        moved = (x - weights(start)[name]).abs().max().item()
        results.append((weights(other)[name] - x).abs().max().item() / (moved + 1e-4))
    return max(results)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["pe=rope", "optimizer.eps=1e-3"], [*COPY, "trainer.batch_size=50"]])
def test_two_processes_train_as_one(words: list[str], tmp_path: Path) -> None:
    """Gradients are sums in another order: weights differ by rounding."""
    made = cell(*words, "epochs=1")
    one, two = made.lightning_module(), made.lightning_module()
    fit(one, max_steps=6, max_epochs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(two, max_steps=6, max_epochs=2, strategy="ddp_fork", devices=2)
    assert distance(one, two, made.lightning_module()) <= ROUNDED


SHARDED = """
import os
import sys
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.tensor import DTensor
sys.path[:0] = {path}
import test_trainer as tests
device, devices = "{device}", {devices}
module = tests.cell(*{words}).lightning_module()
strategy = ModelParallelStrategy(data_parallel_size=devices, tensor_parallel_size=1)
given = {{"accelerator": device, "strategy": strategy, "devices": devices, "max_steps": 6, "max_epochs": 2}}
trainer = tests.fit(module, **given)
split = {{name: isinstance(x, DTensor) for name, x in module.model.state_dict().items()}}
kept = {{name: x.full_tensor() for name, x in module.model.state_dict().items()}}
if trainer.is_global_zero:
    assert all(split.values()), split
    torch.save({{name: x.cpu() for name, x in kept.items()}}, "{file}")
torch.distributed.barrier()  # one that ends first could end the other with an error
torch.distributed.destroy_process_group()
os._exit(0)  # threads of gloo that still run would abort the program at its end
"""


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_parameters_that_are_split_over_devices_are_trained_as_whole_ones(device: str, tmp_path: Path) -> None:
    """FSDP: those of the encoding too, and gradients are clipped by the norm of all."""
    words = ["pe=lrope", "optimizer.eps=1e-3", "trainer.clip=0.5", f"trainer.device={device}", "trainer.graph=false"]
    devices = 2 if device == "cpu" else torch.cuda.device_count()
    path = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    script, file = tmp_path / "sharded.py", tmp_path / "kept.pt"
    script.write_text(SHARDED.format(path=path, device=device, devices=devices, words=words, file=file))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={devices}",
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = cell(*words)
    one, two = made.lightning_module(), made.lightning_module()
    fit(one, max_steps=6, max_epochs=2, accelerator=device)
    two.model.load_state_dict(torch.load(file))
    assert distance(one.cpu(), two, made.lightning_module()) <= ROUNDED


def test_accumulated_batches_train_as_one_of_all_their_sequences() -> None:
    """Also at the end of an epoch, where fewer are left, and where sequences have more or fewer answers."""
    whole, parts = cell(*COPY, "trainer.batch_size=64"), cell(*COPY, "trainer.batch_size=16")
    one, four, last = whole.lightning_module(), parts.lightning_module(), parts.lightning_module()
    fit(one, max_epochs=2)
    fit(four, max_epochs=2, accumulate_grad_batches=4)
    fit(last, max_epochs=2, accumulate_grad_batches=2)
    assert distance(one, four, whole.lightning_module()) <= ROUNDED
    assert distance(one, last, whole.lightning_module()) > 10 * ROUNDED


# -- what a Trainer can be asked for -----------------------------------------------------------------------------------


class Seen(Callback):
    """Notes batches, losses, learning rates and the size of updates."""

    def __init__(self) -> None:
        self.tokens: list[Tensor] = []
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.norms: list[float] = []
        self.values: list[float] = []

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        self.tokens.append(batch.tokens)
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_before_zero_grad(self, trainer: L.Trainer, module: Any, *_: Any) -> None:
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        if gradients:
            self.norms.append(torch.nn.utils.get_total_norm(gradients).item())
            self.values.append(max(g.abs().max().item() for g in gradients))

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, *_: Any) -> None:
        self.losses.append(float(outputs["loss"]))


def trained(*words: str, callbacks: tuple[Callback, ...] = (), **arguments: Any) -> tuple[Training, L.Trainer, Seen]:
    module, seen = cell("pe=lrope", "model.dropout=0.1", "epochs=2", *words).lightning_module(), Seen()
    return module, fit(module, callbacks=[seen, *callbacks], **{"max_epochs": 2} | arguments), seen


def test_epochs_have_orders_and_dropout_of_their_own() -> None:
    _, _, seen = trained()
    assert len(seen.tokens) == 2 * STEPS
    assert len({tuple(x.flatten().tolist()) for x in seen.tokens}) == 2 * STEPS
    assert len(set(seen.losses)) == 2 * STEPS


def test_the_learning_rate_follows_the_schedule() -> None:
    module, _, seen = trained("optimizer.schedule=cosine", "optimizer.warmup_steps=3")
    assert seen.rates == [1e-3 * module.optimization.factor(step) for step in range(2 * STEPS)]
    assert len(set(seen.rates)) > STEPS


def test_gradients_are_clipped_as_the_trainer_says() -> None:
    free = trained(max_epochs=1)[2]
    by_norm = trained(max_epochs=1, gradient_clip_val=0.05)[2]
    by_value = trained(max_epochs=1, gradient_clip_val=0.001, gradient_clip_algorithm="value")[2]
    assert max(by_norm.norms) <= 0.05 * 1.001 < min(free.norms)
    assert max(by_value.values) <= 0.001001 < min(free.values)
    assert (
        same(weights(trained(max_epochs=1, gradient_clip_val=0.05)[0]), weights(trained("trainer.clip=0.05")[0]))
        is False
    )
    assert same(
        weights(trained(max_epochs=1, gradient_clip_val=0.05)[0]),
        weights(trained("trainer.clip=0.05", max_epochs=1)[0]),
    )


def test_accumulated_gradients_are_one_step() -> None:
    module, made, seen = trained("optimizer.schedule=cosine", accumulate_grad_batches=4)
    assert made.global_step == 2 * 3  # of 9 batches: 4, 4 and 1
    assert len(set(seen.losses)) == 2 * STEPS
    assert module.total_steps == 6
    assert len(set(seen.rates)) == 6


def test_a_limited_training_goes_through_the_data() -> None:
    _, made, seen = trained(limit_train_batches=4)
    assert made.global_step == 8
    assert len({tuple(x.flatten().tolist()) for x in seen.tokens}) == 8


def test_batches_to_overfit_are_the_same_in_every_epoch() -> None:
    _, _, seen = trained(overfit_batches=2)
    rows = [tuple(x.flatten().tolist()) for x in seen.tokens]
    assert rows == [rows[0], rows[1]] * 2
    assert rows[0] != rows[1]


def test_fit_validate_test_and_predict_follow_each_other() -> None:
    made = cell("pe=rope", "epochs=1")
    module, data, mine = made.lightning_module(), made.data_module(), trainer(max_epochs=1, limit_val_batches=1.0)
    before = mine.validate(module, datamodule=data, verbose=False)[0]
    mine.fit(module, datamodule=data)
    after = mine.validate(module, datamodule=data, verbose=False)[0]
    assert after["validation/loss_all"] < before["validation/loss_all"]
    assert "test/accuracy" in mine.test(module, datamodule=data, verbose=False)[0]
    predicted = torch.cat(mine.predict(module, datamodule=data))
    assert len(predicted) == data.dataset.size("test")


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_time": {"seconds": 60}},
        {"fast_dev_run": 2},
        {"profiler": "simple"},
        {"deterministic": True},
        {"detect_anomaly": True},
        {"check_val_every_n_epoch": 2, "limit_val_batches": 1.0},
        {"val_check_interval": 0.5, "limit_val_batches": 2},
        {"num_sanity_val_steps": 1, "limit_val_batches": 1.0},
        {"reload_dataloaders_every_n_epochs": 1},
        {"min_epochs": 1},
        {"enable_model_summary": True},
        {"inference_mode": False},
        {"barebones": True},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_arguments_that_do_not_change_numbers_do_not(arguments: dict[str, Any], whole_two: dict[str, Tensor]) -> None:
    if "barebones" in arguments:
        made = cell("pe=lrope", "model.dropout=0.1", "epochs=2")
        module = made.lightning_module()
        L.Trainer(accelerator="cpu", max_epochs=2, barebones=True).fit(module, datamodule=made.data_module())
    else:
        module = trained(**arguments)[0]
    assert same(weights(module), whole_two) is ("fast_dev_run" not in arguments)


@pytest.fixture(scope="module")
def whole_two() -> dict[str, Tensor]:
    return weights(trained()[0])


def test_callbacks_read_what_is_logged(tmp_path: Path) -> None:
    stop = EarlyStopping("validation/loss", patience=0, min_delta=1e9)
    best = ModelCheckpoint(tmp_path / "best", monitor="validation/loss")
    rate = LearningRateMonitor("step")
    logger = CSVLogger(tmp_path)
    ends = {"limit_val_batches": 1.0, "enable_checkpointing": True, "log_every_n_steps": 1, "max_epochs": 2}
    made = trained(callbacks=(stop, best, rate), logger=logger, **ends)[1]
    assert made.current_epoch == 2  # the second validation is no better by 1e9
    assert stop.stopped_epoch == 1
    assert Path(best.best_model_path).exists()
    written = Path(logger.log_dir, "metrics.csv").read_text(encoding="utf-8")
    assert all(name in written for name in ("train/loss_all", "train/gradient_norm", "validation/loss", "lr-Adam"))


def test_a_training_ends_at_its_steps_or_its_time() -> None:
    assert trained(max_epochs=-1, max_steps=5)[1].global_step == 5
    assert trained(max_time={"seconds": 0})[1].global_step < 2 * STEPS


def test_a_limited_test_and_a_limited_prediction_read_so_many_batches() -> None:
    made = cell("pe=rope", "epochs=1")
    mine = trainer(limit_test_batches=0, limit_predict_batches=0)
    assert not mine.test(made.lightning_module(), datamodule=made.data_module(), verbose=False)
    assert not mine.predict(made.lightning_module(), datamodule=made.data_module())


def test_statistics_of_the_device_are_logged(tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    logger = CSVLogger(tmp_path)
    trained(callbacks=(DeviceStatsMonitor(cpu_stats=True),), logger=logger, log_every_n_steps=1, max_steps=2)
    assert "DeviceStatsMonitor.on_train_batch_end/" in Path(logger.log_dir, "metrics.csv").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:.*overriding `LightningModule.optimizer_")
def test_steps_that_accumulate_by_a_schedule_are_counted() -> None:
    made = trained(callbacks=(GradientAccumulationScheduler({0: 1, 1: 4}),))[1]
    assert made.global_step == STEPS + 3


def test_half_precision_on_a_cpu_is_replaced_with_a_warning_of_lightning() -> None:
    with pytest.warns(UserWarning, match="fp16 is not supported on CPU"):
        made = trainer(precision="16-mixed")
    assert str(made.precision) == "bf16-mixed"


@pytest.mark.parametrize("words", [["optimizer.schedule=cosine"], ["optimizer.warmup_steps=3"], ["pe=drope"]])
def test_steps_that_accumulate_by_a_schedule_are_refused_where_anything_depends_on_them(words: list[str]) -> None:
    with pytest.raises(ValueError, match="^callbacks must leave the number of steps to accumulate_grad_batches"):
        trained(*words, callbacks=(GradientAccumulationScheduler({0: 4}),))


def test_averaging_that_replaces_the_learning_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="^callbacks must leave the learning rate to optimizer.schedule=constant"):
        trained(callbacks=(StochasticWeightAveraging(1e-2),))


REFUSED: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "bf16-true": ([], {"precision": "bf16-true"}, "precision must be one of 32-true, bf16-mixed"),
    "16-true": ([], {"precision": "16-true"}, "precision must be one of 32-true, bf16-mixed"),
    "64-true": ([], {"precision": "64-true"}, "precision must be one of 32-true, bf16-mixed"),
    "precision": (["trainer.precision=bf16-mixed"], {}, "precision must be that of trainer.precision=bf16-mixed"),
    "clip": (["trainer.clip=1"], {"gradient_clip_val": 0.5}, "gradient_clip_val must be that of trainer.clip=1"),
    "a longer cosine": (["optimizer.schedule=cosine"], {"max_epochs": 3}, "max_epochs must be at most epochs=2"),
    "an endless cosine": (["optimizer.schedule=cosine"], {"max_epochs": -1}, "max_epochs must be at most epochs=2"),
    "longer phases": (["pe=drope"], {"max_epochs": 3}, "max_epochs must be at most epochs=2, on which its phases"),
    "a graph": (["trainer.graph=true"], {}, "trainer.graph=true needs a CUDA device"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_in_one_line(name: str) -> None:
    words, arguments, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as error:
        trained(*words, **arguments)
    assert "\n" not in str(error.value)


def test_what_a_graph_cannot_honour_is_done_without_one_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where steps could be captured."""
    monkeypatch.setattr("pe_lab.training.module.refusal_reason", lambda *_: None)
    for name, arguments in {
        "accumulate_grad_batches": {"accumulate_grad_batches": 2},
        "gradient_clip_algorithm='value'": {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"},
    }.items():
        module = trained("trainer.graph=auto", max_epochs=1, **arguments)[0]
        assert module.graph_reason == f"trainer.graph=auto; none: cannot be used with {name}"
        assert same(weights(module), weights(trained("trainer.graph=false", max_epochs=1, **arguments)[0]))
        with pytest.raises(ValueError, match=f"^trainer.graph=true cannot be used with {name}: "):
            trained("trainer.graph=true", **arguments)


def test_data_of_another_cell_is_refused() -> None:
    module, other = cell("pe=rope").lightning_module(), cell("pe=rope", "seed=1").data_module()
    with pytest.raises(ValueError, match="settings of Sequences must be those of the module"):
        fit(module, data=other, max_epochs=1)


def test_bf16_mixed_is_honoured_where_the_cell_does_not_say() -> None:
    full, mixed = trained(max_epochs=1)[0], trained(max_epochs=1, precision="bf16-mixed")[0]
    assert not same(weights(full), weights(mixed))
    assert same(
        weights(mixed), weights(trained("trainer.precision=bf16-mixed", max_epochs=1, precision="bf16-mixed")[0])
    )
