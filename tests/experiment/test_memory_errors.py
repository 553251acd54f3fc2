"""What there is no memory for fails in one line that names the settings it depends on."""

import pytest
import torch

from faults.sweeps import TINY
from helpers.configs import in_ledger
from pe_lab.experiment import measurement
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.job import Job
from pe_lab.experiment.memory_errors import NoMemoryError, explain_memory_errors
from pe_lab.training.module import Training

NO_MACHINE_HAS = 2**50  # bytes: more than 47 bits of addresses reach
SETTINGS = r"sequences of 33 tokens \(data=pattern\), pe=rope, model.depth=1 and model.width=16 must fit in memory"


def job(folder, *words: str) -> Job:
    words = (*TINY, "data.length=33", "pe=rope", "epochs=1", "logger=none", *words)
    return Job.from_config(in_ledger(folder, *words, multirun=False)[0])


def serve(one: Job) -> None:
    one.request()
    try:
        one.complete(wait=False)
    finally:
        one.withdraw()


def exhausted(*_: object, **__: object) -> None:
    torch.empty(NO_MACHINE_HAS, dtype=torch.uint8)


def test_weights_without_room_fail_their_cell(tmp_path):
    large = job(tmp_path, "model.mlp_ratio=1000000000000")  # no model is made before it is trained
    with pytest.raises(NoMemoryError, match=rf"^trainer.batch_size=64, {SETTINGS}, got none for \d+ bytes$"):
        serve(large)
    assert large.failure is not None
    assert large.failure["reason"].startswith("trainer.batch_size=64, sequences of 33 tokens")


def test_a_step_without_room_fails_its_cell(tmp_path, monkeypatch):
    one = job(tmp_path)
    monkeypatch.setattr(Training, "training_step", exhausted)
    with pytest.raises(NoMemoryError, match=SETTINGS):
        serve(one)
    assert one.failure is not None
    monkeypatch.undo()
    serve(one)  # as soon as there is room
    assert one.is_trained


def test_an_encoding_without_room_is_refused_before_anything_is_trained():
    table = ("pe=learnable", f"pe.max_len={2**25}", f"model.width={2**22}")
    (cfg,) = in_ledger("unused", *TINY, *table, multirun=False)
    with pytest.raises(NoMemoryError, match="pe=learnable, model.depth=1 and model.width=4194304 must fit in memory"):
        Cell.from_config(cfg)


def test_a_length_without_room_fails_alone(tmp_path, monkeypatch):
    one, measured = job(tmp_path, "evaluate.lengths=[1,2,3]"), measurement.evaluate

    def evaluate(model, dataset, *given):
        return exhausted() if dataset.task.length > 80 else measured(model, dataset, *given)

    monkeypatch.setattr(measurement, "evaluate", evaluate)
    serve(one)
    assert one.is_trained
    reasons = {request["length"]: one.records.failure(request) for request in one.cell.requests}
    assert reasons[2] is None
    assert "evaluate.lengths=3, sequences of 99 tokens (data=pattern), pe=rope" in reasons[3]["reason"]


@pytest.mark.parametrize(
    ("error", "amount"),
    [
        (MemoryError("Unable to allocate 7.28 TiB for an array with shape (1000000000000,)"), "7.28 TiB"),
        (MemoryError("std::bad_alloc"), "all of it"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total"), "20.00 GiB"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "all of it"),
        (RuntimeError("CUDA error: out of memory"), "all of it"),
    ],
)
def test_every_error_for_lack_of_memory_names_the_settings_once(error, amount):
    (cfg,) = in_ledger("unused", *TINY, "data.length=33", "pe=rope", multirun=False)
    with (
        pytest.raises(NoMemoryError, match=rf"^probe=attention, {SETTINGS}, got none for {amount}$"),
        explain_memory_errors(cfg, 7),
        explain_memory_errors(cfg, 33, "probe=attention"),
    ):
        raise error


def test_other_errors_stay_what_they_are():
    (cfg,) = in_ledger("unused", *TINY, multirun=False)
    with (
        pytest.raises(RuntimeError, match=r"^mat1 and mat2 shapes cannot be multiplied$"),
        explain_memory_errors(cfg, 33),
    ):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
