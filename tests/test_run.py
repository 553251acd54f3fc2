"""The program, as a process: killed, raced, interrupted, run twice."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from pe_lab import config
from pe_lab.cell import Cell
from pe_lab.results.ledger import Ledger

TINY = [
    *("model.depth=1", "model.width=16", "model.num_heads=2", "trainer.batch_size=512", "trainer.device=cpu"),
    *("logger=none", "trainer.save_every=0.05"),
]
SWEEP = ["-m", "pe=rope,learnable", "epochs=30,4,1", "seed=0,1"]


def start(ledger: Path, *arguments: str, module: str = "pe_lab.run", cwd: Path | None = None) -> subprocess.Popen:
    """The program with tiny cells, in a session of its own so that all of it can be killed."""
    command = [sys.executable, "-m", module, *TINY, f"ledger={ledger}", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=cwd,
        # what a shell starts in the background ignores Ctrl-C, and hands that down
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(ledger: Path, *arguments: str, **options) -> tuple[int, str, str]:
    """Exit status, what was printed, and the errors."""
    process = start(ledger, *arguments, **options)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def cells(ledger: Path) -> dict[str, tuple]:
    """All cells of a ledger: how many of each name, weights, and metric rows but for times."""
    found = {}
    for road in Ledger(ledger).roads():
        for epochs in road.stops():
            rows = pd.read_csv(road.stop(epochs) / "metrics.csv", dtype=str)
            rows = rows[rows["metric"] != "tokens_per_second"].to_numpy().tolist()
            name = road.summary(epochs)["name"]
            assert name not in found
            found[name] = ((road.stop(epochs) / "weights.safetensors").read_bytes(), rows)
    return found


def wait_for(condition, seconds: float = 120):
    """What the condition comes to, once that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise TimeoutError


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """The ledger of a sweep that nothing happened to."""
    ledger = tmp_path_factory.mktemp("undisturbed")
    status, out, err = run(ledger, *SWEEP)
    assert status == 0, err
    assert len(cells(ledger)) == 12
    assert len(out.splitlines()) == 1 + 6
    return ledger


def test_a_single_cell_prints_its_loss_beside_the_floors_and_is_trained_once(tmp_path):
    status, out, err = run(tmp_path, "epochs=1")
    assert status == 0, err
    assert "floor: bayes" in out
    (road,) = Ledger(tmp_path).roads()
    before = road.cost()
    again, out_again, err_again = run(tmp_path, "epochs=1")
    assert (again, out_again) == (0, out)
    assert "1 of 1 cells are in the ledger already" in err_again
    assert road.cost() == before


def test_a_sweep_run_twice_does_the_work_once(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "ledger")
    costs = [road.cost() for road in Ledger(tmp_path / "ledger").roads()]
    status, _, err = run(tmp_path / "ledger", *SWEEP)
    assert status == 0, err
    assert [road.cost() for road in Ledger(tmp_path / "ledger").roads()] == costs


def test_a_sweep_trains_each_road_once_through_all_its_stops(undisturbed):
    for road in Ledger(undisturbed).roads():
        assert road.stops() == [1, 4, 30]
        assert road.cost()["stops"] == 3
        assert not list(road.folder.glob("wanted/*"))


def test_a_sweep_in_one_process_has_the_same_cells(undisturbed, tmp_path):
    status, _, err = run(tmp_path, *SWEEP, "hydra/launcher=basic")
    assert status == 0, err
    assert cells(tmp_path) == cells(undisturbed)


def test_a_run_killed_at_random_points_ends_with_the_same_bits(undisturbed, tmp_path):
    rng = random.Random(0)
    road = Ledger(tmp_path).road(Cell(config.expand([*TINY, f"ledger={tmp_path}"], False)[0]).identity)
    for _ in range(4):
        process = start(tmp_path, "epochs=30")
        wait_for(lambda process=process: road.holder() or process.poll() is not None)
        time.sleep(rng.uniform(0, 0.8))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if process.returncode != -signal.SIGKILL:
            break
        (road.folder / "holder.json").unlink(missing_ok=True)
    assert road.stops() or road.newest_state()
    status, _, err = run(tmp_path, "epochs=30")
    assert status == 0, err
    assert cells(tmp_path)["rope-d1-e30-s0"] == cells(undisturbed)["rope-d1-e30-s0"]


def test_two_sweeps_on_one_ledger_finish_every_cell_once(undisturbed, tmp_path):
    both = [start(tmp_path, *SWEEP, "workers=1"), start(tmp_path, *SWEEP, "workers=1")]
    for process in both:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert cells(tmp_path) == cells(undisturbed)
    assert [road.cost()["stops"] for road in Ledger(tmp_path).roads()] == [3] * 4


def test_a_sweep_whose_worker_is_killed_run_again_has_every_cell_once(undisturbed, tmp_path):
    process = start(tmp_path, *SWEEP)
    holder = wait_for(lambda: next((road.holder() for road in Ledger(tmp_path).roads() if road.holder()), None))
    assert holder["pid"] != process.pid
    os.kill(holder["pid"], signal.SIGKILL)
    process.communicate(timeout=300)
    while process.returncode:
        process = start(tmp_path, *SWEEP)
        process.communicate(timeout=300)
    assert cells(tmp_path) == cells(undisturbed)


def test_a_worker_that_is_asked_to_end_fails_its_cell_and_the_sweep_goes_on(undisturbed, tmp_path):
    process = start(tmp_path, *SWEEP, "hydra/launcher=basic")
    wait_for(lambda: any((road.holder() or {}).get("epoch", 0) > 0 for road in Ledger(tmp_path).roads()))
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1, err
    assert "terminated by SIGTERM" in err
    assert "run again, trains what is missing" in err
    assert 0 < len(cells(tmp_path)) < 12
    assert run(tmp_path, *SWEEP)[0] == 0
    assert cells(tmp_path) == cells(undisturbed)


def test_a_sweep_that_is_asked_to_end_takes_its_wishes_back_and_leaves_no_worker(undisturbed, tmp_path):
    process = start(tmp_path, *SWEEP)
    holder = wait_for(lambda: next((road.holder() for road in Ledger(tmp_path).roads() if road.holder()), None))
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    wait_for(lambda: not Path(f"/proc/{holder['pid']}").exists(), seconds=60)
    assert [road.wanted() for road in Ledger(tmp_path).roads()] == [[]] * 4
    assert run(tmp_path, *SWEEP)[0] == 0
    assert cells(tmp_path) == cells(undisturbed)


def test_ctrl_c_stops_the_sweep_and_takes_its_wishes_back(undisturbed, tmp_path):
    process = start(tmp_path, *SWEEP)
    wait_for(lambda: any(road.holder() for road in Ledger(tmp_path).roads()))
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert [road.wanted() for road in Ledger(tmp_path).roads()] == [[]] * 4
    assert not [
        road.failure(epochs) for road in Ledger(tmp_path).roads() for epochs in (1, 4, 30) if road.failure(epochs)
    ]
    assert run(tmp_path, *SWEEP)[0] == 0
    assert cells(tmp_path) == cells(undisturbed)


def test_a_cell_that_fails_is_named_and_the_others_are_trained(tmp_path):
    sweep = ("-m", "optimizer.lr=1e-3,1e30", "optimizer.eps=1e-30", "epochs=1,2")
    status, out, err = run(tmp_path, *sweep)
    assert status == 1
    assert "the training loss must be finite, got" in err
    assert "of 4 cells are missing" in err
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [["rope", "1", "1"], ["rope", "1", "2"]]
    assert sum(len(road.stops()) for road in Ledger(tmp_path).roads()) == 2


def test_a_damaged_entry_is_refused_before_any_training_and_left_alone(undisturbed, tmp_path):
    ledger = tmp_path / "ledger"
    shutil.copytree(undisturbed, ledger)
    road = next(iter(Ledger(ledger).roads()))
    summary = road.stop(4) / "summary.json"
    summary.write_text(summary.read_text().replace("loss", "Loss"))
    damaged = summary.read_text()
    status, _, err = run(ledger, *SWEEP)
    assert status == 1
    assert len(err.strip().splitlines()) == 1
    assert "it is refused and left as it is" in err
    assert summary.read_text() == damaged


def test_it_runs_from_any_folder_and_the_ledger_is_relative_to_that(tmp_path):
    status, _, err = run(Path("mine"), "epochs=1", cwd=tmp_path)
    assert status == 0, err
    assert len(cells(tmp_path / "mine")) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


STUDIES = """
import sys
from pe_lab import config, run
asked = config.studies
config.studies = lambda words: {lists} if "both" in words else asked(words)
sys.argv = ["pe_lab.run", "-m", "both"]
run.main()
"""


def test_a_study_made_of_studies_trains_each_and_tells_which_is_not_complete(tmp_path):
    rates = ["pe=rope,none", "seed=0,1", "optimizer.lr=1e-3,1e-2", "study_name=rates", "hydra/launcher=basic"]
    fails = ["pe=rope", "seed=0", "optimizer.lr=1e30", "study_name=fails", "hydra/launcher=basic"]
    lists = [[*TINY, f"ledger={tmp_path}", "epochs=2", *words] for words in (fails, rates)]
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


def test_an_installed_wheel_ships_its_configs(tmp_path):
    root = config.folder().parent
    if not (root / "pyproject.toml").exists():
        pytest.skip("not a checkout")
    wheel = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(root)]
    subprocess.run(wheel, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    shutil.unpack_archive(built, site, "zip")
    code = "import pe_lab.config as c; print(c.folder()); import pe_lab.run; pe_lab.run.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *TINY, f"ledger={tmp_path / 'ledger'}", "epochs=1"],
        env=os.environ | {"PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(site / "pe_lab" / "conf") in done.stdout
    assert len(cells(tmp_path / "ledger")) == 1
