"""A job: what it keeps in memory when its cell is in the ledger."""

import gc
from contextlib import nullcontext

import pytest
import torch

from helpers.configs import TINY
from pe_lab import config
from pe_lab.data.base import InMemoryDataset
from pe_lab.experiment import job as jobs_module
from pe_lab.experiment import measurement
from pe_lab.experiment.checkpoint_loggers import CheckpointLoggers
from pe_lab.experiment.executor import Executor
from pe_lab.experiment.job import Job
from pe_lab.ledger.run import Run
from pe_lab.training.module import Training


def kept(kind: type) -> list[object]:
    """Return the objects of a kind that are still referred to."""
    gc.collect()
    return [one for one in gc.get_objects() if kind in type(one).__mro__]


@pytest.mark.long
def test_a_sweep_keeps_its_jobs_and_neither_their_sequences_nor_their_models(tmp_path):
    words = [*TINY, "epochs=1", "logger=none", f"ledger={tmp_path}", "evaluate.lengths=[1,2]", "seed=0,1"]
    before = {id(one) for one in (*kept(InMemoryDataset), *kept(Training))}
    jobs = [Job.from_config(cfg) for cfg in config.expand_overrides(words, multirun=True)]
    for job in jobs:
        job.request()
        job.complete(wait=True)
        job.withdraw()
    assert [job.missing for job in jobs] == [False, False]
    datasets = [one for one in kept(InMemoryDataset) if id(one) not in before]
    assert len(datasets) == len(jobs)
    assert not any(one.__dict__.get("_splits") for one in datasets)
    assert not [one for one in kept(Training) if id(one) not in before]


def test_memory_that_steps_free_is_kept_during_a_training_and_returned_after_it(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(measurement, "keep_freed_memory", lambda: calls.append("keep"))
    monkeypatch.setattr(jobs_module, "return_freed_memory", lambda: calls.append(f"return {job.is_trained}"))
    (cfg,) = config.expand_overrides([*TINY, "epochs=1", "logger=none", f"ledger={tmp_path}"], multirun=False)
    job = Job.from_config(cfg)
    job.request()
    job.complete(wait=True)
    job.withdraw()
    assert calls == ["keep", "return True"]


def test_threads_are_set_where_a_cell_is_computed_and_not_by_its_logs(tmp_path, monkeypatch):
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    (cfg,) = config.expand_overrides([*TINY, "epochs=1", "logger=none", f"ledger={tmp_path}"], multirun=False)
    cell = Job.from_config(cfg).cell
    CheckpointLoggers(cell, cell.run, measurement.Datasets(cell))
    assert threads == []
    Executor(cell, cell.run)
    assert threads == [1]


def test_a_job_that_waits_reads_the_identity_of_its_run_once(tmp_path, monkeypatch):
    (cfg,) = config.expand_overrides([*TINY, "epochs=1", "logger=none", f"ledger={tmp_path}"], multirun=False)
    job, waited, read = Job.from_config(cfg), [], []
    job.request()
    identity = Run.identity
    monkeypatch.setattr(Run, "identity", lambda run: (read.append(run.name), identity(run))[1])
    monkeypatch.setattr(Run, "lease", lambda run: nullcontext(False))  # another process trains
    monkeypatch.setattr(
        jobs_module.time, "sleep", lambda _: waited.append(len(waited) > 4 and job.run.fail(1, "no", None))
    )
    job.complete(wait=True)
    assert (len(waited), read) == (6, [job.run.name])


def test_memory_is_returned_after_a_training_that_failed(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(jobs_module, "return_freed_memory", lambda: calls.append("return"))
    monkeypatch.setattr("pe_lab.experiment.executor.Executor.train_requested", lambda _: 1 / 0)
    (cfg,) = config.expand_overrides([*TINY, "epochs=1", "logger=none", f"ledger={tmp_path}"], multirun=False)
    job = Job.from_config(cfg)
    job.request()
    with pytest.raises(ZeroDivisionError):
        job.complete(wait=True)
    assert calls == ["return"]
