"""One worker per GPU, with devices that are made up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.sweeps import TINY
from pe_lab import config
from pe_lab.system import gpus


@pytest.fixture
def four(tmp_path, monkeypatch) -> Path:
    """Device nodes of four GPUs, and what else the driver puts there."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(gpus, "DEVICE_FOLDER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["0", "1", "2", "3"]),
        ("2", ["2"]),
        ("3, 1", ["3", "1"]),
        ("GPU-8f2,MIG-1", ["GPU-8f2", "MIG-1"]),
        ("", []),
        ("1,-1,2", ["1"]),
    ],
)
def test_the_gpus_are_those_that_cuda_shows(four, monkeypatch, visible, expected):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.gpus() == expected


def test_a_machine_without_gpus_has_none_whatever_is_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "DEVICE_FOLDER", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert gpus.gpus() == []


@pytest.mark.parametrize(
    ("words", "launcher", "workers"),
    [([], "cores", 4), (["workers=8"], "joblib", 8), (["workers=1"], "basic", 1), (["trainer.devices=3"], "cores", 1)],
)
def test_a_sweep_has_a_worker_per_gpu_unless_another_number_is_given(four, tmp_path, words, launcher, workers):
    (cfg,) = config.expand_overrides([*words, f"ledger={tmp_path}"], multirun=True)
    assert config.describe_launcher(launcher, cfg).workers == workers


def test_a_launcher_that_starts_no_workers_refuses_a_number_of_them(four, tmp_path):
    (cfg,) = config.expand_overrides(["workers=8", f"ledger={tmp_path}"], multirun=True)
    with pytest.raises(ValueError, match=r"workers must be 1 with hydra/launcher=basic, .* got 8"):
        config.describe_launcher("basic", cfg)


def test_workers_get_groups_of_gpus_that_train_together(four):
    assert gpus.gpu_groups(gpus.gpus(), 2) == ["0,1", "2,3"]
    assert gpus.gpu_groups(gpus.gpus(), 3) == ["0,1,2"]
    assert gpus.gpu_groups(gpus.gpus(), 1) == gpus.gpus()
    assert gpus.gpu_groups([], 2) == []


def test_a_sweep_on_the_cpu_has_a_worker_per_core(four, tmp_path):
    (cfg,) = config.expand_overrides(["trainer.device=cpu", f"ledger={tmp_path}"], multirun=False)
    from joblib import cpu_count

    assert config.describe_launcher("cores", cfg).workers == cpu_count()


RAY = {"num_cpus": 1, "num_gpus": 0, "max_retries": 1}


@pytest.mark.parametrize(
    ("words", "settings", "workers", "elsewhere"),
    [
        ([], {"num_gpus": 1}, 4, False),
        ([], {"num_gpus": 0.5}, 8, False),
        (["trainer.devices=2"], {"num_gpus": 2}, 2, False),
        (["trainer.device=cpu", "workers=3"], {}, 3, False),
        (["trainer.device=cpu", "workers=3"], {"address": "auto"}, 3, True),
    ],
)
def test_ray_has_as_many_workers_as_share_the_gpus_and_gives_them_theirs(
    four, tmp_path, words, settings, workers, elsewhere
):
    (cfg,) = config.expand_overrides([*words, f"ledger={tmp_path}"], multirun=True)
    assert config.describe_launcher("ray", cfg, RAY | settings) == config.LauncherTraits(
        workers, elsewhere, gives_gpus=True
    )


@pytest.mark.parametrize(
    ("words", "settings", "named"),
    [
        ([], {}, r"num_gpus must be 1, .*\(trainer.device=auto\), got 0"),
        (["trainer.devices=2"], {"num_gpus": 1}, r"num_gpus must be trainer.devices=2, .*, got 1"),
        (["trainer.device=cpu"], {"num_gpus": 1}, r"num_gpus must be 0 with trainer.device=cpu, got 1"),
        ([], {"num_gpus": 1.5}, r"num_gpus must be 0 or more, and whole above 1, got 1.5"),
        ([], {"num_gpus": -1}, r"num_gpus must be 0 or more, .*got -1"),
        ([], {"num_cpus": 0}, r"num_cpus must be more than 0, .*got 0"),
        ([], {"num_cpus": float("inf")}, r"num_cpus must be more than 0, .*got inf"),
        ([], {"num_cpus": float("nan")}, r"num_cpus must be more than 0, .*got nan"),
        ([], {"max_retries": -2}, r"max_retries must be .*got -2"),
        ([], {"address": "auto"}, r"workers must be given with hydra.launcher.address=auto"),
    ],
)
def test_what_ray_is_asked_for_fits_the_cells(four, tmp_path, words, settings, named):
    (cfg,) = config.expand_overrides([*words, f"ledger={tmp_path}"], multirun=True)
    with pytest.raises(ValueError, match=named):
        config.describe_launcher("ray", cfg, RAY | settings)


RECORDS = """
import json, os
from pathlib import Path
from pe_lab.encodings.base import PositionalEncoding

class Records(PositionalEncoding):
    def __init__(self, sizes, name):
        super().__init__(sizes, name)
        with Path("seen").open("a") as file:
            file.write(json.dumps([os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]]) + "\\n")
"""
PROGRAM = """
import sys
from pathlib import Path
from pe_lab import run
from pe_lab.system import gpus
gpus.DEVICE_FOLDER = Path("nodes")
sys.argv[1:] = {words}
run.main()
"""


@pytest.mark.slow
def test_each_worker_of_a_sweep_sees_one_gpu_and_they_share_them_all(tmp_path):
    (tmp_path / "mine.py").write_text(RECORDS)
    (tmp_path / "nodes").mkdir()
    for number in range(8):
        (tmp_path / "nodes" / f"nvidia{number}").touch()
    own = ["pe=none", "pe.name=records", "pe._target_=mine.Records"]
    words = [word for word in TINY if "device" not in word]
    words += [*own, "-m", "seed=0,1,2", "epochs=1", "ledger=ledger", "logger=none", "workers=3"]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "5,7", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", PROGRAM.format(words=words)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = {tuple(json.loads(line)) for line in (tmp_path / "seen").read_text().splitlines()}
    assert {gpu for _, gpu in seen} == {"5,7", "5", "7"}  # this program, and its workers
    assert len([pid for pid, gpu in seen if gpu == "5,7"]) == 1
