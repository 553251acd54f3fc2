"""The program, as a process: raced, interrupted, run twice. What kills do to it: tests/benchmarks/test_faults.py."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from faults.injection import damage
from faults.programs import Program, wait_for
from faults.sweeps import SWEEP, TINY, cells
from pe_lab import config
from pe_lab.ledger.ledger import Ledger

pytestmark = pytest.mark.slow


def start(ledger: Path, *words: str, cwd: Path | None = None, **env: str) -> Program:
    return Program([*words, f"ledger={ledger}", "logger=none"], ledger.parent / "printed", cwd=cwd, env=env)


def run(ledger: Path, *words: str, cwd: Path | None = None, **env: str) -> tuple[int, str, str]:
    """Exit status, what was printed, and the errors."""
    return start(ledger, *words, cwd=cwd, **env).wait()


def owner(ledger: Path) -> dict | None:
    return next((owner for training_run in Ledger(ledger).runs() if (owner := training_run.owner())), None)


def test_the_program_as_it_is_called_prints_a_loss_beside_the_floors_and_trains_once(tmp_path):
    command = [sys.executable, "-m", "pe_lab.run", *TINY, f"ledger={tmp_path}", "logger=none", "epochs=1"]
    first, again = (subprocess.run(command, capture_output=True, text=True, timeout=300) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert "floor: bayes" in first.stdout
    (training_run,) = Ledger(tmp_path).runs()
    assert training_run.cost()["checkpoints"] == 1
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert "1 of 1 cells are in the ledger already" in again.stderr
    place, _, following = first.stdout.splitlines()[-1].partition(": ")
    assert Path(place) == training_run.checkpoint(1)
    shown = [sys.executable, "-m", "pe_lab.cli", *shlex.split(following.partition("next: pe-lab ")[2])]
    assert subprocess.run(shown, capture_output=True, timeout=300).returncode == 0
    assert (tmp_path / "report.html").is_file()


def test_a_sweep_run_twice_does_the_work_once(sound, tmp_path):
    shutil.copytree(sound, tmp_path / "ledger")
    costs = [training_run.cost() for training_run in Ledger(tmp_path / "ledger").runs()]
    status, _, err = run(tmp_path / "ledger", *SWEEP)
    assert status == 0, err
    assert [training_run.cost() for training_run in Ledger(tmp_path / "ledger").runs()] == costs


def test_a_sweep_trains_each_run_once_through_all_its_checkpoints(sound):
    training_runs = list(Ledger(sound).runs())
    assert len(training_runs) == 4
    for training_run in training_runs:
        assert training_run.checkpoints() == [1, 4, 16]
        assert training_run.cost()["checkpoints"] == 3
        assert not list(training_run.folder.glob("requested/*"))


OTHERS = [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("submitit_here", "joblib")]


@pytest.mark.parametrize("launcher", ["cores", *OTHERS])
def test_workers_that_a_launcher_starts_make_the_same_cells(sound, tmp_path, launcher):
    cache = tmp_path / "cache"
    ledger = tmp_path / "ledger"
    status, out, err = run(ledger, *SWEEP, f"hydra/launcher={launcher}", "workers=2", XDG_CACHE_HOME=str(cache))
    assert status == 0, err
    table, last = out.split("\n\n")
    # before the cells: that none uses position, and what is the same; after them: the verdicts, and that runs are few
    assert len(table.splitlines()) == 3 + 6 + 2
    assert last.startswith(f"{ledger}: ")
    assert cells(ledger) == cells(sound)
    assert [training_run.cost()["checkpoints"] for training_run in Ledger(ledger).runs()] == [3] * 4
    files = [json.loads(path.read_text()) for path in ledger.glob("*/checkpoints/*/environment.json")]
    assert {environment["threads"] for environment in files} == {1}
    assert not list(ledger.rglob("*.pkl"))
    if launcher == "submitit_here":
        logs = list(cache.glob("pe_lab/hydra/.submitit/*/*_log.out"))
        assert len(logs) == 2  # jobs, of which there are no more than workers
    assert {path.name for path in ledger.iterdir() if path.name[0] != "."} - {
        training_run.name for training_run in Ledger(ledger).runs()
    } == {"floors", "commands", "format.json"}


WAITS = """
import os, time
from pathlib import Path
from pe_lab.encodings.base import PositionalEncoding

class Waits(PositionalEncoding):
    def embed(self, x, layout):
        folder, end = Path({folder!r}), time.monotonic() + 200
        if len(x) > 1:  # attention is chosen by a single sequence, in the program that starts the workers
            (folder / f"trains.{{os.getpid()}}").touch()
            while not (folder / "go").exists() and time.monotonic() < end:
                time.sleep(0.01)
        return x
"""
WAITING = [*TINY, "-m", "pe=none", "pe.name=waits", "pe._target_=mine.Waits", "epochs=4,1", "seed=0,1,2,3"]


def waiting_sweep(folder: Path, *command: str) -> subprocess.Popen[str]:
    """Start WAITING: 8 cells on 4 runs. Each process that trains leaves its id, and waits there for `folder/go`."""
    (folder / "mine.py").write_text(WAITS.format(folder=str(folder)))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder)}
    words = [f"ledger={folder / 'ledger'}", "logger=none"]
    return subprocess.Popen([*command, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def trainers(folder: Path) -> set[int]:
    """Return the ids of the processes that have trained a run of WAITING."""
    return {int(path.suffix[1:]) for path in folder.glob("trains.*")}


def test_a_worker_serves_the_next_cell_when_another_has_the_first(tmp_path):
    words = [*WAITING, "hydra/launcher=cores", "workers=2"]
    process = waiting_sweep(tmp_path, sys.executable, "-m", "pe_lab.run", *words)
    wait_for(lambda: process.poll() is not None or len(trainers(tmp_path)) == 2)
    (tmp_path / "go").touch()
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert len(trainers(tmp_path)) == 2
    assert process.pid not in trainers(tmp_path)
    assert len(cells(tmp_path / "ledger")) == 8


def test_slurm_is_asked_for_with_the_number_of_jobs_and_nothing_is_trained_here(tmp_path):
    status, _, err = run(tmp_path / "ledger", *SWEEP, "hydra/launcher=submitit")
    assert (status, len(err.strip().splitlines())) == (1, 1)
    assert "workers must be given with hydra/launcher=submitit" in err
    status, _, err = run(tmp_path / "ledger", *SWEEP, "hydra/launcher=submitit", "workers=2", PATH="/nowhere")
    assert status == 1
    assert "slurm" in err.lower()
    assert cells(tmp_path / "ledger") == {}


def test_two_sweeps_on_one_ledger_finish_every_cell_once(sound, tmp_path):
    ledger = tmp_path / "ledger"
    for process in [start(ledger, *SWEEP), start(ledger, *SWEEP)]:
        status, _, err = process.wait()
        assert status == 0, err
    assert cells(ledger) == cells(sound)
    assert [training_run.cost()["checkpoints"] for training_run in Ledger(ledger).runs()] == [3] * 4


def test_a_worker_that_is_asked_to_end_fails_its_cell_and_the_sweep_goes_on(tmp_path):
    process = waiting_sweep(tmp_path, sys.executable, "-m", "pe_lab.run", *WAITING, "hydra/launcher=basic")
    wait_for(lambda: process.poll() is not None or trainers(tmp_path))
    process.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    _, err = process.communicate()
    assert process.returncode == 1, err
    assert "terminated by SIGTERM" in err
    assert "run again, trains what is missing" in err
    assert len(cells(tmp_path / "ledger")) == 7


def test_a_sweep_that_gets_sigterm_withdraws_its_requests_and_leaves_no_worker(sound, tmp_path):
    ledger = tmp_path / "ledger"
    process = start(ledger, *SWEEP, "hydra/launcher=cores", "workers=2")
    worker = wait_for(lambda: owner(ledger))
    assert worker["pid"] != process.pid
    process.kill(signal.SIGTERM)
    assert process.wait()[0] == 128 + signal.SIGTERM
    wait_for(lambda: not Path(f"/proc/{worker['pid']}").exists())
    assert [training_run.requested() for training_run in Ledger(ledger).runs()] == [[]] * 4
    assert run(ledger, *SWEEP)[0] == 0
    assert cells(ledger) == cells(sound)


def test_ctrl_c_ends_the_sweep_and_withdraws_its_requests(sound, tmp_path):
    ledger = tmp_path / "ledger"
    process = start(ledger, *SWEEP, "hydra/launcher=cores", "workers=2")
    wait_for(lambda: owner(ledger))
    process.kill(signal.SIGINT, session=True)
    assert process.wait()[0] == 130
    training_runs = list(Ledger(ledger).runs())
    assert [training_run.requested() for training_run in training_runs] == [[]] * 4
    assert not [
        training_run.failure(epochs)
        for training_run in training_runs
        for epochs in (1, 4, 16)
        if training_run.failure(epochs)
    ]
    assert run(ledger, *SWEEP)[0] == 0
    assert cells(ledger) == cells(sound)


def test_a_cell_that_fails_is_named_and_the_others_are_trained(tmp_path):
    sweep = (*TINY, "-m", "optimizer.lr=1e-3,1e30", "optimizer.eps=1e-30", "epochs=2,1", "hydra/launcher=basic")
    status, out, err = run(tmp_path / "ledger", *sweep)
    assert status == 1
    assert "the training loss must be finite, got" in err
    assert "of 4 cells are missing" in err
    _, settings, _, *lines = out.split("\n\n")[0].splitlines()  # the first says that none uses position
    assert settings == "data pattern, depth 1"
    assert [line.split()[:2] for line in lines] == [["rope", "1"], ["rope", "2"]]
    assert sum(len(training_run.checkpoints()) for training_run in Ledger(tmp_path / "ledger").runs()) == 2


PARTS = (  # one of each run
    "run.json",
    "checkpoints/4/summary.json",
    "checkpoints/4/weights.safetensors",
    "checkpoints/4/checksums.json",
)


def damaged(ledger: Path, parts: dict[str, str]) -> list[bytes]:
    """Damage a file of each run that is named, and return what is in them now."""
    paths = [path for name, part in parts.items() for path in (ledger / name).glob(part)]
    assert len(paths) == len(parts)
    for path in paths:
        damage(path, random.Random(0))
    return [path.read_bytes() for path in paths]


def aside(ledger: Path) -> list[bytes]:
    return [kept.read_bytes() for kept in ledger.glob(".aside/**/*") if kept.is_file()]


def test_what_is_damaged_is_set_aside_and_made_again_and_the_rest_is_left_alone(sound, tmp_path):
    ledger = tmp_path / "ledger"
    shutil.copytree(sound, ledger)
    parts = dict(zip((training_run.name for training_run in Ledger(ledger).runs()), PARTS, strict=True))
    before = {path: path.stat().st_ino for path in ledger.glob("*/checkpoints/*")}
    contents = damaged(ledger, parts)
    status, _, err = run(ledger, *SWEEP)
    assert status == 0, err
    assert cells(ledger) == cells(sound)
    changed = {path for path, inode in before.items() if path.stat().st_ino != inode}
    assert changed == {ledger / name / "checkpoints/4" for name, part in parts.items() if part[0] == "c"}
    for name, part in parts.items():
        assert "set aside: " in err
        assert f"{name}/{part.partition('/')[0]}" in err
    assert all(content in aside(ledger) for content in contents)


@pytest.mark.parametrize("part", ["state-*", "records/1/*/rows.csv"])
def test_a_damaged_state_or_record_leaves_the_checkpoints_alone(sound, tmp_path, part):
    ledger = tmp_path / "ledger"
    shutil.copytree(sound, ledger)
    words = [*SWEEP, "evaluate.offset=0,3"] if part.startswith("records") else SWEEP
    if part.startswith("records"):
        assert run(ledger, *words)[0] == 0
    name = next(iter(Ledger(ledger).runs())).name
    before = {path: path.stat().st_ino for path in ledger.glob("*/checkpoints/*")}
    (content,) = damaged(ledger, {name: part})
    status, _, err = run(ledger, *words)
    assert status == 0, err
    assert cells(ledger) == cells(sound)
    assert all(path.stat().st_ino == inode for path, inode in before.items())
    if part == "state-*":  # nobody needed it
        assert run(ledger, *SWEEP, "epochs=17", "pe=rope,learnable")[0] == 0
    else:
        assert f"{name}/records" in err
        assert "set aside: " in err
    assert content in aside(ledger)


def test_a_damaged_checkpoint_is_not_made_again_by_evaluate(sound, tmp_path):
    ledger = tmp_path / "ledger"
    shutil.copytree(sound, ledger)
    summary = next(iter(Ledger(ledger).runs())).checkpoint(4) / "summary.json"
    summary.write_text(summary.read_text().replace("loss", "Loss"))
    code = "import pe_lab.run as r, sys; sys.argv[1:] = {words}; r.main(train=False)"
    words = [*SWEEP, f"ledger={ledger}", "logger=none", "evaluate.offset=0,3"]
    done = subprocess.run([sys.executable, "-c", code.format(words=words)], capture_output=True, text=True)
    begun, line = done.stderr.splitlines()  # torch is loaded to find it
    assert (done.returncode, begun) == (1, "12 cells: loading PyTorch")
    assert "run again, sets it aside and makes it again" in line
    assert "Loss" in summary.read_text()


def test_it_runs_from_any_folder_and_the_ledger_is_relative_to_that(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    process = Program([*TINY, "logger=none", "ledger=mine", "epochs=1"], tmp_path / "printed", cwd=there)
    status, _, err = process.wait()
    assert status == 0, err
    assert len(cells(there / "mine")) == 1
    assert [path.name for path in there.iterdir()] == ["mine"]


STUDIES = """
import sys
import time
from pe_lab import config, run
asked = config.study_overrides
config.study_overrides = lambda words: {lists} if "both" in words else asked(words)
sys.argv = ["pe_lab.run", "-m", "both"]
run.main()
"""


def test_a_study_made_of_studies_trains_each_and_says_which_is_not_complete(tmp_path):
    rates = ["pe=rope,none", "seed=0,1", "optimizer.lr=1e-3,1e-2", "study_name=rates", "hydra/launcher=basic"]
    fails = ["pe=rope", "seed=0", "optimizer.lr=1e30", "study_name=fails", "hydra/launcher=basic"]
    lists = [[*TINY, f"ledger={tmp_path}", "epochs=2", "logger=none", *words] for words in (fails, rates)]
    command = [sys.executable, "-c", STUDIES.format(lists=lists)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "1 of 2 studies are not complete" in done.stderr
    assert "Traceback" not in done.stderr
    folder = tmp_path / "studies" / "rates"
    chosen = pd.read_csv(folder / "rates.csv")
    assert chosen["pe"].tolist() == ["rope", "none"]
    assert set(chosen["optimizer.lr"]) <= {1e-3, 1e-2}
    curves = pd.read_csv(folder / "curves.csv")
    assert len(curves[curves["metric"] == "loss"]) == 8 * 2  # cells x validations
    assert set(curves["epoch"]) == {1.0, 2.0}


def test_an_installed_wheel_ships_its_configs_and_its_text(tmp_path):
    root = config.config_folder().parent
    if not (root / "pyproject.toml").exists():
        pytest.skip("not a checkout")
    wheel = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(root)]
    subprocess.run(wheel, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    shutil.unpack_archive(built, site, "zip")
    code = "import pe_lab.config as c; print(c.config_folder()); from pe_lab.data.text.sources import shipped_file; "
    code += "print(shipped_file('tinyshakespeare')); import pe_lab.run; pe_lab.run.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *TINY, f"ledger={tmp_path / 'ledger'}", "epochs=1", "logger=none"],
        env=os.environ | {"PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(site / "pe_lab" / "conf") in done.stdout
    assert str(site / "pe_lab" / "data" / "text") in done.stdout
    assert len(cells(tmp_path / "ledger")) == 1


AT_ITS_END = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever started the tests
atexit.register(os.kill, os.getpid(), {signum:d})
from pe_lab import run
sys.argv[1:] = ["--info"]
run.main()
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=lambda signum: signum.name)
def test_a_signal_while_the_interpreter_ends_prints_no_trace(signum):
    command = [sys.executable, "-c", AT_ITS_END.format(signum=signum)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signum, "")


IN_BETWEEN = """
import os, signal, sys
from pe_lab import config, run

def half_done(*given):
    try:
        os.kill(os.getpid(), {signum:d})
    finally:
        raise AttributeError("it is half done")

signal.signal(signal.SIGINT, signal.default_int_handler)
config.complete_cell = half_done
sys.argv[1:] = []
run.main()
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=lambda signum: signum.name)
def test_what_a_signal_leaves_half_done_is_not_reported_as_an_error(signum):
    command = [sys.executable, "-c", IN_BETWEEN.format(signum=signum)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signum, "")


A_THREAD_ENDS = """
import sys, threading
from pe_lab import config, run

def in_a_thread(*given):
    raise {error}

def cell(*given):
    thread = threading.Thread(target=in_a_thread, name="showing progress")
    thread.start()
    thread.join()
    raise ValueError("that is all")

config.complete_cell = cell
sys.argv[1:] = []
run.main()
"""


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        ("SystemError('error return without exception set')", "error return without exception set"),
        ("MemoryError", "MemoryError"),
    ],
)
def test_a_thread_that_ends_by_an_exception_is_reported_in_one_line(error, reported):
    """Out of memory, Python itself can end the thread that shows progress."""
    command = [sys.executable, "-c", A_THREAD_ENDS.format(error=error)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"showing progress ended: {reported}\nerror: that is all\n")


KILLS = """
import os, signal
from pe_lab.encodings.base import PositionalEncoding

class Kills(PositionalEncoding):
    def embed(self, x, layout):
        if self.sizes.width == 24 and {when}:
            os.kill(os.getpid(), signal.SIGKILL)  # as the system does when there is no memory left
        return x
"""


@pytest.mark.exhaustive  # three deaths of two workers; test_sweep.py has the same without processes
@pytest.mark.parametrize("when", ["trains", "measures"])
def test_a_cell_that_kills_its_workers_is_failed_and_the_others_are_trained(tmp_path, when):
    # attention is chosen by a single sequence, in the program that starts the workers
    condition = "len(x) > 1" if when == "trains" else "x.shape[1] > self.sizes.length"
    (tmp_path / "mine.py").write_text(KILLS.format(when=condition))
    ledger = tmp_path / "ledger"
    own = ["pe=none", "pe.name=kills", "pe._target_=mine.Kills"]
    words = [*TINY, "-m", *own, "model.width=24,16,8,32", "epochs=4,1", f"ledger={ledger}", "logger=none"]
    words += ["evaluate.lengths=1,2"] if when == "measures" else []
    command = [sys.executable, "-m", "pe_lab.run", *words, "workers=2"]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    failed = [line for line in done.stderr.splitlines() if "was killed three times" in line]
    names = [" kills-pattern-d1-e4-s0", " kills-pattern-d1-e1-s0"]
    assert [line.partition(":")[2].partition(":")[0] for line in failed] == names
    assert all(line.startswith("missing: ") for line in failed)
    made = {
        training_run.identity()["model"]["width"]: training_run.checkpoints() for training_run in Ledger(ledger).runs()
    }
    killed = made.pop(24)
    if when == "trains":
        assert killed == []
    else:  # how far it was when it was killed for the third time depends on what was measured first
        assert killed in ([1], [4], [1, 4])
    assert list(made.values()) == [[1, 4]] * 3


ELSEWHERE = """
import dataclasses, sys
from pe_lab import config, run
usual = config.describe_launcher
config.describe_launcher = lambda *given: dataclasses.replace(usual(*given), remote=True)
sys.argv[1:] = [*{words}, *sys.argv[1:]]
run.main()
"""


def test_when_a_job_elsewhere_dies_the_others_are_waited_for_and_nothing_is_trained_here(tmp_path):
    """As on Slurm, with jobs of this machine."""
    words = [*WAITING, "hydra/launcher=submitit_here", "workers=2"]
    process = waiting_sweep(tmp_path, sys.executable, "-c", ELSEWHERE.format(words=words))
    wait_for(lambda: process.poll() is not None or len(trainers(tmp_path)) == 2)
    os.kill(min(trainers(tmp_path)), signal.SIGKILL)  # the first job: the launcher waits for that one first
    (tmp_path / "go").touch()
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert len(trainers(tmp_path)) == 2
    assert process.pid not in trainers(tmp_path)
    assert "the launcher stopped: " in err
    assert "Traceback" not in err
    assert len(out.splitlines()) > 1
    assert len(cells(tmp_path / "ledger")) == 8  # also of the run on which the job died


def test_an_earlier_checkpoint_continues_where_its_training_was_killed(tmp_path):
    ledger = tmp_path / "ledger"
    words = [*TINY, "pe=rope"]
    assert run(ledger, *words, "epochs=120")[0] == 0
    (training_run,) = Ledger(ledger).runs()
    process = start(ledger, *words, "epochs=110")
    wait_for(lambda: len(training_run.states.files()) == 2 and training_run.states.files()[0][0] > 100)
    process.kill(signal.SIGKILL)
    process.wait()
    step = training_run.states.files()[0][0]
    process = start(ledger, *words, "epochs=110")
    began = wait_for(lambda: (training_run.owner() or {}).get("from"))
    assert began >= step / 4
    status, _, err = process.wait()
    assert status == 0, err
    assert len(training_run.states.files()) == 1
    fresh = tmp_path / "fresh"
    assert run(fresh, *words, "epochs=110")[0] == 0
    assert cells(fresh)["rope-pattern-d1-e110-s0"] == cells(ledger)["rope-pattern-d1-e110-s0"]
