"""How far requested cells are, read from the ledger alone."""

import json
import multiprocessing
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from benchmarks.ledger import identity, record_checkpoint
from pe_lab.ledger import progress as progress_module
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.processes import register_process
from pe_lab.ledger.progress import COMMANDS_FOLDER, Progress, RequestedCell, Upcoming, write_command
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import Run
from pe_lab.system.files import write_json


def make_run(folder, pe: str, depth: int = 1) -> Run:
    return Ledger(folder).run(identity({"name": pe}, depth))


def cell_of(run: Run, epochs: int, depth: int = 1) -> RequestedCell:
    return RequestedCell(run.name, epochs, f"{run.identity()['pe']['name']}-e{epochs}", depth)


def names(cells: list[RequestedCell]) -> list[str]:
    return [cell.name for cell in cells]


def serve(
    run: Run, epoch: float, target: int, ago: float, began: float = 0.0, process: str | None = None, **others: object
) -> None:
    """Write the heartbeat of an owner that began `ago` seconds ago; by default this process."""
    now = time.time()
    owner = {
        "host": "here",
        "pid": os.getpid(),
        "process": process or register_process(run.folder.parent),
        "heartbeat": now,
    }
    owner |= {"since": now - ago, "from": began, "epoch": epoch, "target": target}
    write_json(run.folder / "owner.json", owner | others)


def test_each_cell_is_in_one_list(tmp_path):
    done, served, failed, gone = (make_run(tmp_path, pe) for pe in ("rope", "alibi", "none", "t5"))
    record_checkpoint(done, 4, 1.0)
    serve(served, 5.0, 8, ago=10)
    for epochs in (8, 16):
        served.request(epochs)
    failed.fail(4, "the loss must be finite", 7)
    cells = [
        cell_of(done, 4),
        cell_of(served, 8),
        cell_of(served, 16),
        cell_of(served, 32),
        cell_of(failed, 4),
        cell_of(gone, 4),
    ]
    state = Progress(tmp_path, cells).snapshot()
    assert names(state.done) == ["rope-e4"]
    ((running,), ((failure, reason),)) = state.running, state.failed
    assert (running.cell.name, running.pid, running.reached) == ("alibi-e8", os.getpid(), 5.0)
    assert (failure.name, reason) == ("none-e4", "the loss must be finite")
    assert names(state.waiting) == ["alibi-e16"]
    assert names(state.missing) == ["alibi-e32", "t5-e4"]


def test_the_time_left_follows_from_the_speed_so_far(tmp_path):
    shallow, deep = make_run(tmp_path, "rope", 1), make_run(tmp_path, "rope", 4)
    cells = [cell_of(shallow, 10), cell_of(deep, 10, depth=4)]
    for run in (shallow, deep):
        run.request(10)
    progress = Progress(tmp_path, cells)
    assert progress.snapshot().seconds_left is None
    serve(shallow, 5.0, 10, ago=10)  # 5 epochs of 4/3 in 10 s
    state = progress.snapshot()
    work = 5 * (4 / 3) + 10 * (13 / 3)
    assert state.seconds_left == pytest.approx(work / (5 * (4 / 3)) * 10, rel=0.01)
    assert state.fraction_done == pytest.approx(5 * (4 / 3) / (10 * (4 / 3) + 10 * (13 / 3)))
    serve(shallow, 7.0, 10, ago=10, began=5.0)  # resumed at 5: only its own epochs count
    state = progress.snapshot()
    assert state.seconds_left == pytest.approx((3 * (4 / 3) + 10 * (13 / 3)) / (2 * (4 / 3)) * 10, rel=0.01)
    serve(deep, 5.0, 10, ago=10)  # two owners: the longer run decides
    rate = (2 * (4 / 3) + 5 * (13 / 3)) / 20
    assert progress.snapshot().seconds_left == pytest.approx(5 * (13 / 3) / rate, rel=0.01)


def test_finished_runs_count_for_the_speed(tmp_path):
    done, other = make_run(tmp_path, "rope"), make_run(tmp_path, "alibi")
    record_checkpoint(done, 10, 1.0)
    done.account({"total": 20.0, "steps": 15.0, "evaluation": 1.0, "checkpoints": 1})
    serve(other, 0.0, 10, ago=0.0)
    other.request(10)
    state = Progress(tmp_path, [cell_of(done, 10), cell_of(other, 10)]).snapshot()
    assert state.seconds_left == pytest.approx(20.0, rel=0.01)
    assert state.fraction_done == 0.5


def test_the_cost_of_a_longer_run_is_divided_by_all_its_epochs(tmp_path):
    further, other = make_run(tmp_path, "rope"), make_run(tmp_path, "alibi")
    for epochs in (4, 64):
        record_checkpoint(further, epochs, 1.0)
    further.account({"total": 64.0, "steps": 60.0, "evaluation": 1.0, "checkpoints": 2})
    serve(other, 0.0, 4, ago=0.0)
    other.request(4)
    assert Progress(tmp_path, [cell_of(further, 4), cell_of(other, 4)]).snapshot().seconds_left == pytest.approx(
        4.0, rel=0.01
    )


def test_no_time_is_left_when_all_cells_are_done(tmp_path):
    done = make_run(tmp_path, "rope")
    record_checkpoint(done, 4, 1.0)
    state = Progress(tmp_path, [cell_of(done, 4)]).snapshot()
    assert (state.fraction_done, state.seconds_left, state.missing) == (1.0, 0.0, [])


def test_the_last_metric_of_a_training_is_known_where_it_was_written(tmp_path):
    run = make_run(tmp_path, "rope")
    progress = Progress(tmp_path, [cell_of(run, 4)])
    for latest, shown in (
        ({}, ""),
        ({"latest": None}, ""),
        ({"latest": ["validation loss", 0.25]}, "validation loss 0.25"),
    ):
        serve(run, 1.0, 4, ago=1, **latest)
        assert progress.snapshot().running[0].latest == shown
    serve(run, 1.0, 4, ago=1, latest=["validation loss", "low"])  # damaged
    assert progress.snapshot().running == []


def test_the_test_loss_of_a_trained_cell_is_read(tmp_path):
    done, other = make_run(tmp_path, "rope"), make_run(tmp_path, "alibi")
    record_checkpoint(done, 4, 0.75)
    progress = Progress(tmp_path, [cell_of(done, 4), cell_of(other, 4)])
    assert [progress.test_loss(cell) for cell in progress.cells] == [0.75, None]


@pytest.mark.parametrize("content", ["null", "[]", "{}", "{", '{"process": "nobody"}'])
def test_a_damaged_owner_file_counts_as_no_owner(tmp_path, content):
    run = make_run(tmp_path, "rope")
    (run.folder / "owner.json").write_text(content)
    state = Progress(tmp_path, [cell_of(run, 4)]).snapshot()
    assert (state.running, names(state.missing)) == ([], ["rope-e4"])


def test_owners_and_requests_of_dead_processes_do_not_count_and_are_not_removed(tmp_path):
    run = make_run(tmp_path, "rope")
    serve(run, 3.0, 4, ago=1, process="0" * 32)
    write_json(run.folder / "requested" / f"4.{'0' * 32}", {})
    state = Progress(tmp_path, [cell_of(run, 4)]).snapshot()
    assert (state.running, state.waiting, names(state.missing)) == ([], [], ["rope-e4"])
    assert len(list(run.folder.glob("requested/*"))) == 1


def _live(folder, ready, end) -> None:
    serve(make_run(folder, "rope"), 3.0, 4, ago=1)
    ready.put(True)
    end.get()


def test_an_owner_in_another_process_counts_while_it_lives(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, end = context.Queue(), context.Queue()
    other = context.Process(target=_live, args=(tmp_path, ready, end))
    other.start()
    assert ready.get(timeout=60)
    progress = Progress(tmp_path, [cell_of(make_run(tmp_path, "rope"), 4)])
    assert progress.snapshot().running[0].pid == other.pid
    end.put(None)
    other.join()
    assert progress.snapshot().running == []


def test_a_cell_is_done_when_its_measurements_are_recorded(tmp_path):
    run = make_run(tmp_path, "rope")
    record_checkpoint(run, 4, 1.0)
    request = {"kind": "length", "length": 2, "policy": "raw", "offset": 0, "revision": [1, 1]}
    cell = replace(cell_of(run, 4), measurements=[request])
    progress = Progress(tmp_path, [cell])
    assert names(progress.snapshot().missing) == ["rope-e4"]
    records = Records(run, 4)
    records.fail(request, "no such length")
    assert progress.snapshot().failed == [(cell, "no such length")]
    records.add(request, pd.DataFrame({"metric": ["loss"], "value": [1.0]}), {})
    assert progress.snapshot().done == [cell]


def test_the_time_left_of_measuring_follows_from_the_measurements_so_far(tmp_path, monkeypatch):
    """As of `pe_lab.evaluate`, which trains nothing."""
    now = [100.0]
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(time=time.time, monotonic=lambda: now[0]))
    requests = [{"kind": "length", "length": n, "policy": "raw", "offset": 0, "revision": [1, 1]} for n in (2, 4)]
    runs = [make_run(tmp_path, pe) for pe in ("rope", "alibi")]
    for run in runs:
        record_checkpoint(run, 4, 1.0)
        run.request(4)
    progress = Progress(tmp_path, [replace(cell_of(run, 4), measurements=requests) for run in runs])
    state = progress.snapshot()
    assert (state.fraction_done, state.seconds_left) == (0.0, None)
    rows = pd.DataFrame({"metric": ["loss"], "value": [1.0]})
    for run, request, seconds, left in ((0, 0, 10.0, 30.0), (0, 1, 14.0, 14.0), (1, 0, 15.0, 5.0)):
        Records(runs[run], 4).add(requests[request], rows, {})
        now[0] = 100.0 + seconds
        assert progress.snapshot().seconds_left == pytest.approx(left)
    assert progress.snapshot().fraction_done == 0.75


def test_what_is_requested_later_belongs_to_the_work_and_to_the_time(tmp_path):
    done, served = make_run(tmp_path, "rope"), make_run(tmp_path, "alibi")
    record_checkpoint(done, 10, 10.0)
    serve(served, 5.0, 10, ago=5)
    served.request(10)
    cells = [cell_of(done, 10), cell_of(served, 10)]
    alone, whole = (Progress(tmp_path, cells, Upcoming(work=work)).snapshot() for work in (0.0, 20 * (1 + 1 / 3)))
    assert (alone.fraction_done, whole.fraction_done) == pytest.approx((0.75, 0.375))
    assert whole.seconds_left == pytest.approx(5 * alone.seconds_left)  # 5 epochs, and 20 more
    record_checkpoint(served, 10, 10.0)
    assert (
        Progress(tmp_path, cells, Upcoming(1, 20.0)).snapshot().seconds_left is None
    )  # nothing runs, and more may come


def test_the_same_command_is_written_once(tmp_path):
    cells = [cell_of(make_run(tmp_path, pe), 4) for pe in ("rope", "alibi")]
    for _ in range(2):
        write_command(tmp_path, ["-m", "pe=rope,alibi"], "question", cells)
    (path,) = (tmp_path / COMMANDS_FOLDER).iterdir()
    kept = json.loads(path.read_text())
    assert [RequestedCell.from_json(cell) for cell in kept["cells"]] == cells
    assert (kept["overrides"], kept["study"]) == (["-m", "pe=rope,alibi"], "question")
    assert kept["processes"] == [register_process(tmp_path)]
    path.write_text(json.dumps(kept | {"processes": ["0" * 32]}))
    write_command(tmp_path, [], None, cells)
    assert json.loads(path.read_text())["processes"] == [register_process(tmp_path)]
    write_command(tmp_path, [], None, cells[:1])
    assert len(list((tmp_path / COMMANDS_FOLDER).iterdir())) == 2


def test_a_damaged_cost_is_ignored_and_not_removed(tmp_path):
    done, other = make_run(tmp_path, "rope"), make_run(tmp_path, "alibi")
    record_checkpoint(done, 10, 1.0)
    other.request(10)
    (done.folder / "cost.json").write_text('{"total": ')
    assert Progress(tmp_path, [cell_of(done, 10), cell_of(other, 10)]).snapshot().seconds_left is None
    assert (done.folder / "cost.json").exists()
