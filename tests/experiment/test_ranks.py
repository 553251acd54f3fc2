"""A run on several devices: its processes write as one, and a process that is killed ends it in one line."""

import os
import signal
import uuid
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file

from faults.programs import Program, wait_for
from helpers.configs import TINY_MODEL, in_ledger
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.job import Job
from pe_lab.system.files import digest

TINY = [*TINY_MODEL, "trainer.device=cpu", "logger=none", "pe=rope"]
TINY += ["data=copy", "data.train=200", "data.longest=8", "trainer.batch_size=50", "optimizer.eps=1e-3"]
TWO = ["trainer.devices=2", "trainer.strategy=ddp"]


def cell(*words: str, ledger: Path | None = None) -> Cell:
    return Cell.from_config(in_ledger(ledger, *TINY, *words, multirun=False)[0])


def curve(job: Job) -> pd.Series:
    rows = pd.read_csv(job.run.checkpoint(job.cell.target) / "metrics.csv")
    rows = rows[rows["metric"] != "tokens_per_second"]
    return rows.set_index(["split", "step", "metric"])["value"]


def require_equal(one: Job, two: Job) -> None:
    """Check that two trained cells differ by rounding: curves by 1e-4, weights by 1e-3 of their largest movement."""
    pd.testing.assert_series_equal(curve(one), curve(two), rtol=1e-4)
    start = one.cell.lightning_module().model.state_dict()
    kept = [load_file(job.run.checkpoint(job.cell.target) / "weights.safetensors") for job in (one, two)]
    for name, x in kept[0].items():
        assert (kept[1][name] - x).abs().max() <= 1e-3 * (x - start[name]).abs().max() + 1e-7, name


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["trainer.devices=0"], "trainer.devices must be an integer of at least 1"),
        (["trainer.strategy=fsdp", "trainer.devices=2"], "trainer.strategy must be one of auto, ddp"),
        (["trainer.strategy=ddp"], "trainer.strategy=ddp needs trainer.devices=2 or more, got 1"),
        (["trainer.devices=2", "trainer.num_nodes=2"], "trainer.num_nodes must be"),
        (["trainer.devices=51"], "trainer.batch_size must leave no batch smaller than the number of devices, 51"),
        (["trainer.devices=2", "data.train=201"], "trainer.batch_size must leave no batch smaller than"),
        (["trainer.devices=2", "trainer.overfit_batches=1"], "trainer.overfit_batches must be null"),
        (["trainer.devices=2", "trainer.graph=true"], "trainer.graph=true cannot be used with several devices"),
    ],
)
def test_devices_that_do_not_fit_are_refused_in_one_line(words: list[str], start: str) -> None:
    with pytest.raises(ValueError, match="^" + start.replace(".", r"\.")) as raised:
        cell(*words)
    assert "\n" not in str(raised.value)


def test_sums_over_devices_are_rounded_otherwise_so_their_number_is_part_of_the_identity() -> None:
    one, two, three = cell(), cell("trainer.devices=2"), cell("trainer.devices=3")
    assert len({digest(each.identity) for each in (one, two, three)}) == 3
    assert cell(*TWO).identity == two.identity
    assert cell("trainer.devices=1", "trainer.strategy=auto").identity == one.identity


@pytest.mark.slow
def test_two_processes_write_the_cell_of_one(tmp_path: Path) -> None:
    """Weights, test and the whole curve, up to rounding; and each file once."""
    jobs = []
    for words in ([], TWO):
        jobs.append(
            job := Job(cell(*words, "epochs=2", "trainer.log_every=1", "evaluate.lengths=[1,2]", ledger=tmp_path))
        )
        job.request()
        job.complete(wait=True)
        job.withdraw()
        assert not job.missing
    one, two = jobs
    require_equal(one, two)
    files = [
        sorted(path.relative_to(job.run.folder).as_posix() for path in job.run.checkpoint(2).rglob("*")) for job in jobs
    ]
    assert files[0] == files[1]
    assert two.run.cost()["checkpoints"] == 1


def process_of(mark: str, rank: int) -> int | None:
    """Return the process of a rank that has a mark in its environment."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"MARK={mark}".encode() in variables and f"RANK={rank}".encode() in variables:
            return int(path.parent.name)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_process_that_is_killed_ends_the_run_in_one_line_and_the_next_command_goes_on(
    rank: int, tmp_path: Path
) -> None:
    ledger, mark = tmp_path / "ledger", uuid.uuid4().hex
    words = [*TINY, *TWO, "epochs=400", "trainer.save_every=0", f"ledger={ledger}"]
    program = Program(words, tmp_path / "printed", env={"MARK": mark})
    wait_for(lambda: program.ended or list(ledger.glob("*/state-*")))
    killed = process_of(mark, rank)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    status, _, errors = program.wait()
    said = [line for line in errors.splitlines() if "loading PyTorch" not in line and "/1 cells" not in line]
    assert (status, said) == (1, [f"error: the process of device {rank} of 2 was killed by signal 9"])
    assert process_of(mark, 1 - rank) is None
    # two, if it was killed after it had written a state and before it removed the last
    reached = max(int(state.name.split("-")[1]) for state in ledger.glob("*/state-*"))
    words[words.index("epochs=400")] = f"epochs={reached // 4 + 1}"
    assert Program(words, tmp_path / "printed").wait()[0] == 0
    (run,) = ledger.glob("*/cost.json")
    (table,) = run.parent.glob("checkpoints/*/metrics.csv")
    steps = pd.read_csv(table)["step"]
    assert steps.is_monotonic_increasing
    assert steps.iloc[-1] == 4 * (reached // 4 + 1)


@pytest.mark.slow
def test_a_sweep_trains_each_of_its_runs_on_several_devices(tmp_path: Path) -> None:
    words = [*TINY, *TWO, "-m", "seed=0,1", "workers=2", "epochs=1", f"ledger={tmp_path / 'ledger'}"]
    status, _, errors = Program(words, tmp_path / "printed").wait()
    assert status == 0, errors
    assert len(list((tmp_path / "ledger").glob("*/checkpoints/1/checksums.json"))) == 2
