"""When workers are started again, given the state of the ledger. Real workers die in test_run.py."""

import _thread
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from omegaconf import DictConfig

from faults.sweeps import TINY
from helpers.configs import in_ledger
from pe_lab import config
from pe_lab.experiment import progress_display, scheduler, sweep, sweep_report
from pe_lab.experiment.job import Job
from pe_lab.experiment.rounds import Round, with_settings
from pe_lab.ledger.processes import register_process, working_for
from pe_lab.ledger.progress import RequestedCell, Snapshot, Upcoming
from pe_lab.ledger.run import DIVERGED, ERROR


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    found = [Job.from_config(cfg) for cfg in in_ledger(tmp_path, *TINY, "logger=none", "epochs=1", "seed=0,1,2")]
    for job in found:
        job.request()
    return found


def dies_on(job: Job, who: str) -> None:
    """Write what a process leaves that dies while it holds the lease of a cell.

    Args:
        who: the name of the process.
    """
    (job.run.folder / "owner.json").write_text(json.dumps({"process": who}))


def launches(jobs: list[Job], each: Callable[[int, list[int]], None]) -> list[tuple[list[int], int]]:
    """Return, for each start of workers, the seeds of their cells and the number of workers.

    Args:
        each: called with the number of the start and its seeds, in place of the workers.
    """
    started: list[tuple[list[int], int]] = []

    def launch(cfgs: list[DictConfig], workers: int) -> None:
        assert len(started) < 20, started
        started.append(([cfg.seed for cfg in cfgs], workers))
        each(len(started), started[-1][0])

    scheduler.start_workers(jobs, launch, 3, remote=False)
    return started


def test_a_run_whose_workers_died_twice_is_tried_alone(jobs):
    """Two runs are in every pool that dies, and one of them is the cause."""

    def each(number: int, seeds: list[int]) -> None:
        if 0 in seeds:
            for job in [job for job in jobs[:2] if job.cell.cfg.seed in seeds]:
                dies_on(job, f"{number}-{job.cell.cfg.seed}")
            raise RuntimeError("a worker was terminated")
        for seed in seeds:
            jobs[seed].run.fail(1, "as if done", None)

    assert launches(jobs, each) == [([0, 1, 2], 3), ([0, 1, 2], 3), ([0], 2), ([1], 2), ([2], 2)]
    assert "killed three times" in jobs[0].failure["reason"]
    assert [job.failure["reason"] for job in jobs[1:]] == ["as if done"] * 2


def test_workers_are_not_started_forever(jobs):
    """Served alone, the run neither kills its worker nor finishes, because another process holds its lease."""

    def each(number: int, seeds: list[int]) -> None:
        if len(seeds) > 1:
            dies_on(jobs[0], str(number))
            raise RuntimeError("a worker was terminated")

    assert [seeds for seeds, _ in launches(jobs, each)] == [[0, 1, 2], [0, 1, 2], [0], [0, 1, 2]]
    assert [job.failure for job in jobs] == [None] * 3


def test_what_starts_no_worker_is_not_tried_again(jobs, capsys):
    def each(number: int, seeds: list[int]) -> None:
        raise RuntimeError("there is no such launcher. And more")

    assert len(launches(jobs, each)) == 1
    assert capsys.readouterr().err == "the launcher stopped: there is no such launcher\n"


def test_workers_elsewhere_are_waited_for_between_two_of_their_cells(jobs, tmp_path, monkeypatch, capsys):
    """One of them dies while another holds no lease. Nothing is trained here."""
    waited = []

    def launch(cfgs: list[DictConfig], workers: int) -> None:
        worker.enter_context(working_for(tmp_path, register_process(tmp_path)))
        raise RuntimeError("a worker was terminated")

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            worker.close()

    monkeypatch.setattr(scheduler, "time", SimpleNamespace(sleep=sleep))
    with ExitStack() as worker:
        scheduler.start_workers(jobs, launch, 2, remote=True)
    assert len(waited) == 3
    assert capsys.readouterr().err == "the launcher stopped: a worker was terminated\n"


def test_where_no_worker_elsewhere_has_begun_the_error_of_the_launcher_is_raised(jobs):
    def launch(cfgs: list[DictConfig], workers: int) -> None:
        raise RuntimeError("there is no such partition")

    with pytest.raises(RuntimeError, match="no such partition"):
        scheduler.start_workers(jobs, launch, 2, remote=True)


def test_a_launcher_that_refuses_its_settings_is_not_replaced_by_this_process(jobs):
    def each(number: int, seeds: list[int]) -> None:
        raise ValueError("no machine has 9 GPUs")

    with pytest.raises(ValueError, match="9 GPUs"):
        launches(jobs, each)


LOST = {"kind": DIVERGED, "reason": "no number"}
PAIRS = ["pe=none,cope,rope_2d", "data=copy,pattern", "model.depth=1", "logger=none"]


def test_pairs_that_cannot_be_are_left_out_of_a_sweep_and_listed(tmp_path, capsys, monkeypatch):
    cfgs = config.expand_overrides([*PAIRS, f"ledger={tmp_path}", "study_name=s", "seed=0,1"], multirun=True)
    served = []
    monkeypatch.setattr(
        Job, "complete", lambda job, wait: served.append((job.cell.cfg.pe.name, job.cell.cfg.data.name))
    )
    with pytest.raises(sweep_report.CellsMissingError, match="6 of 6 cells are missing"):  # nothing is trained here
        sweep.run_cells(cfgs)
    assert served == [
        (pe, data) for pe, data in (("none", "copy"), ("none", "pattern"), ("cope", "copy")) for _ in "12"
    ]
    pairs = [("cope", "pattern"), ("rope_2d", "copy"), ("rope_2d", "pattern")]
    err = capsys.readouterr().err
    assert err.startswith(
        "skipped: 3 pairs, as cope on pattern: cope is defined for causal attention only, this is bidirectional: "
        "use relative_bias\nskipped as well: rope_2d on copy, rope_2d on pattern\n"
    )
    skipped = pd.read_csv(tmp_path / "studies" / "s" / "skipped.csv")
    assert list(zip(skipped["pe"], skipped["data"], strict=True)) == pairs
    assert skipped["reason"].str.contains(" on a grid, | causal ").all()


def test_a_sweep_in_which_nothing_fits_is_refused_as_one_cell_is(tmp_path):
    for words, multirun in ((["pe=cope", "data=pattern"], False), (["pe=cope,forgetting", "data=pattern"], True)):
        with pytest.raises(ValueError, match="^pe=cope data=pattern: cope is defined for causal attention only"):
            sweep.run_cells(config.expand_overrides([*words, f"ledger={tmp_path / 'none'}"], multirun))
    assert not (tmp_path / "none").exists()


def test_what_is_wrong_with_a_setting_still_refuses_the_whole_sweep(tmp_path):
    words = ["pe=none,cope", "data=copy,pattern", "trainer.batch_size=1000000", f"ledger={tmp_path / 'none'}"]
    with pytest.raises(ValueError, match=r"^trainer\.batch_size must be at most"):
        sweep.run_cells(config.expand_overrides(words, multirun=True))


def test_a_list_of_left_out_pairs_is_not_that_of_an_earlier_command(tmp_path, capsys):
    words = [*TINY, "pe=none,cope", "epochs=1", f"ledger={tmp_path}", "study_name=s", "logger=none"]
    sweep.run_cells(config.expand_overrides(words, multirun=True))
    assert "skipped: cope on pattern: " in capsys.readouterr().err
    sweep.run_cells(config.expand_overrides([*words, "pe=none"], multirun=True))
    assert "skipped" not in capsys.readouterr().err
    assert (tmp_path / "studies" / "s" / "skipped.csv").read_text() == "pe,data,reason\n"


@pytest.mark.parametrize(
    ("failures", "line"),
    [
        (
            (None, {"kind": ERROR, "reason": "the training loss must be finite, got nan at step 2"}),
            "2 of 3 cells are missing; the same command, run again, trains what is missing",
        ),
        ((LOST, LOST), "2 of 3 cells are missing, 2 of which diverged: they would do so again"),
        (
            (LOST, None),
            "2 of 3 cells are missing, 1 of which diverged: they would do so again; the same command, run again, "
            "trains the others",
        ),
    ],
)
def test_it_is_said_of_which_missing_cells_training_again_helps(
    failures: tuple[dict[str, str] | None, ...], line: str
) -> None:
    absent = [SimpleNamespace(failure=failure) for failure in failures]
    assert str(sweep_report._missing_error(absent, [*absent, SimpleNamespace()])) == line


def test_a_cell_that_diverged_is_trained_again_where_no_other_depends_on_it(jobs, monkeypatch):
    jobs[0].run.fail(1, "no number", 2, kind=DIVERGED)
    served = []
    monkeypatch.setattr(Job, "complete", lambda job, wait: served.append((job.cell.cfg.seed, job.failure)))
    with pytest.raises(sweep_report.CellsMissingError):
        sweep.run_cells([job.cell.cfg for job in jobs])
    assert served == [(0, None), (1, None), (2, None)]


def test_the_outcome_of_a_cell_that_diverged_is_sent_to_a_stage_that_says_nothing(jobs, monkeypatch):
    for job in jobs:
        job.run.fail(1, "no number", 2, kind=DIVERGED)
    sent = []

    def stage(cfgs):
        sent.extend((yield Round(cfgs)))
        return []

    monkeypatch.setattr(sweep, "study_rounds", stage)
    monkeypatch.setattr(Job, "complete", lambda job, wait: pytest.fail("it would diverge again"))
    assert sweep.run_cells([job.cell.cfg for job in jobs]) == []
    assert [(one.cfg.seed, one.diverged) for one in sent] == [(0, True), (1, True), (2, True)]


def test_time_left_is_shown_where_it_is_known_and_nothing_where_it_is_not():
    def line(left: float | None, done: int = 1) -> str:
        cells = [RequestedCell("run", 1, "cell", 1)] * done
        return progress_display._progress_line(Snapshot(cells, [], [], [], [], 0.0, left), 3)

    assert line(None) == "1/3 cells"
    assert line(61.0) == "1/3 cells, about 01:01 left"
    assert line(61.0, done=0) == "0/3 cells"  # no cell has ended yet


def test_a_study_in_rounds_has_one_count_and_a_bound_on_what_is_left():
    done = [RequestedCell("run", 1, "cell", 1)] * 4

    def line(later: Upcoming, failed: int = 0) -> str:
        return progress_display._progress_line(
            Snapshot(done, [], [(done[0], "it diverged")] * failed, [], [], 0.0, 61.0), 6, later
        )

    assert line(Upcoming(12, 1.0, False)) == "4 of at most 18 trainings, about 01:01 left at most"
    assert line(Upcoming(12, 1.0, True)) == "4 of 18 trainings, about 01:01 left"
    assert line(Upcoming(), failed=2).startswith("6 of 6 trainings")


def test_cells_that_differ_in_the_rate_have_names_of_their_own(jobs, monkeypatch):
    written = []
    monkeypatch.setattr(sweep, "write_command", lambda *given: written.append([cell.name for cell in given[3]]))
    monkeypatch.setattr(Job, "complete", lambda job, wait: None)
    first = jobs[0].cell.cfg
    rates = [with_settings(first, {"optimizer.lr": rate}) for rate in (0.001, 0.003)]
    for cfgs in (rates, rates[:1]):
        with pytest.raises(sweep_report.CellsMissingError):
            sweep.run_cells(cfgs)
    name = jobs[0].cell.name()
    assert written == [[f"{name} lr 0.001", f"{name} lr 0.003"], [name]]


def _no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def _no_memory(*_: object) -> None:
    raise MemoryError


def _stillborn(*_: object) -> int:
    return 1  # a thread that Python ends before it begins


@pytest.mark.parametrize("start", [_no_thread, _no_memory, _stillborn])
def test_a_sweep_does_not_end_or_hang_because_its_progress_cannot_be_shown(jobs, start, monkeypatch, capsys):
    monkeypatch.setattr(_thread, "start_new_thread", start)
    monkeypatch.setattr(progress_display, "START_TIMEOUT", 0.01)
    served = []
    monkeypatch.setattr(Job, "complete", lambda job, wait: served.append(job.cell.cfg.seed))
    with pytest.raises(sweep_report.CellsMissingError):
        sweep.run_cells([job.cell.cfg for job in jobs])
    assert served == [0, 1, 2]
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("progress is not shown")]
    assert len(lines) == (start is not _stillborn)


def test_what_ends_the_showing_of_progress_is_one_line(jobs, monkeypatch, capsys):
    monkeypatch.setattr(progress_display.ProgressDisplay, "_watch", _no_memory)
    monkeypatch.setattr(Job, "complete", lambda job, wait: None)
    with pytest.raises(sweep_report.CellsMissingError):
        sweep.run_cells([job.cell.cfg for job in jobs])
    assert "showing progress ended: MemoryError\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["epochs=1"],
            "note: epochs=1 is 62 steps; models learn little from data=clm in fewer than 500 steps: use epochs=9",
        ),
        (
            ["epochs=null", "steps=40"],
            "note: steps=40; models learn little from data=clm in fewer than 500 steps: use steps=500",
        ),
        (["epochs=9"], None),
    ],
)
def test_a_training_that_is_too_short_for_text_is_pointed_out_before_it_begins(
    tmp_path, monkeypatch, capsys, words, said
):
    monkeypatch.setattr(Job, "complete", lambda job, wait: None)
    cfgs = in_ledger(tmp_path, "data=clm", "model.depth=1", "logger=none", *words)
    with pytest.raises(sweep_report.CellsMissingError):
        sweep.run_cells(cfgs)
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert notes == ([f"{said} or more"] if said else [])
