"""A ledger that somebody else made: nothing in it is executed, nothing outside it is changed, no secret is stored."""

import ast
import shutil
from pathlib import Path

import pandas as pd
import pytest

import pe_lab
from benchmarks.ledger import identity, record_checkpoint
from faults.programs import Program
from faults.sweeps import SWEEP, cells
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.run import Run
from pe_lab.report import __main__ as report
from pe_lab.results import sync
from pe_lab.run import main as run_main
from pe_lab.system.files import file_digest


def test_readers_of_a_ledger_resolve_import_and_instantiate_nothing():
    """This does not apply to the config of the user's own overrides, nor to a cell that the user asks to be made."""
    makes = {"instantiate", "get_class", "get_object", "get_method", "import_module", "__import__", "import_string"}
    makes |= {"OmegaConf.load", "OmegaConf.create", "OmegaConf.resolve", "yaml.safe_load", "yaml.load_all"}
    folder, found = Path(pe_lab.__file__).parent, []
    readers = [path for name in ("ledger", "results", "report") for path in sorted((folder / name).rglob("*.py"))]
    readers.remove(folder / "results" / "trained_cell.py")  # tests/results/test_trained_cell.py: what it may import
    for path in (
        *readers,
        folder / "tracking" / "cell_logs.py",
        folder / "status.py",
        folder / "ledger" / "progress.py",
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            found += [(path.name, name) for name in (called, called.rpartition(".")[2], *names) if name in makes]
    assert len(readers) > 20
    assert found == []


@pytest.mark.slow  # two programs, the first of which trains again
def test_pickles_in_the_place_of_weights_and_states_are_not_opened(ledger, tmp_path, sound, evil, sign):
    marker = tmp_path / "executed"
    pickled = evil(marker)
    for run in list(Ledger(ledger).runs()):
        shutil.rmtree(run.checkpoint(16))
        for _, state in run.states.files():
            state.unlink()
        bad = run.folder / "bad"
        bad.write_bytes(pickled)
        bad.rename(run.folder / f"state-7-{file_digest(bad)[:16]}.safetensors")
        (run.checkpoint(4) / "weights.safetensors").write_bytes(pickled)
        sign(run.checkpoint(4))
    words = [*SWEEP, f"ledger={ledger}", "logger=none"]
    status, _, errors = Program(words, tmp_path / "printed").wait()
    assert status == 0, errors
    assert errors.count("must be a state of its run, got one of None") == 4
    found, expected = cells(ledger), cells(sound)
    assert {name: found[name] for name in found if "e16" in name} == {
        name: expected[name] for name in expected if "e16" in name
    }
    status, _, errors = Program([*words, "evaluate.offset=0,3"], tmp_path / "printed").wait()
    assert status == 0, errors  # set aside and made again
    assert "Traceback" not in errors
    assert not marker.exists()


@pytest.mark.parametrize("main", [sync.main, report.main])
def test_names_in_its_files_do_not_lead_out_of_the_ledger(ledger, tmp_path, program, main, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    outside = tmp_path / "outside"
    shutil.copytree(next(iter(Ledger(ledger).runs())).folder, outside)
    study = ledger / "studies" / "question"
    study.mkdir(parents=True)
    rows = pd.DataFrame({"pe": ["rope"], "depth": [1], "epochs": [4], "seed": [0], "run": ["../outside"]})
    rows.assign(test_loss=1.0).to_csv(study / "rows.csv", index=False)
    before = {path: path.stat().st_mtime_ns for path in outside.rglob("*")}
    status, _, err = program(main, ledger, "--study", "question")
    assert (status, len(err.strip().splitlines())) == (1, 1)
    assert "must be named by 16 hexadecimal digits, got '../outside'" in err
    assert {path: path.stat().st_mtime_ns for path in outside.rglob("*")} == before


@pytest.mark.parametrize("setting", ["study_name", "pe.name", "data.name", "logger.wandb.project"])
def test_names_in_overrides_do_not_lead_out_of_the_ledger(tmp_path, program, monkeypatch, setting):
    here = tmp_path / "here"
    words = [*SWEEP, "ledger=ledger", "logger=csv", f"{setting}=../../outside"]
    if setting == "logger.wandb.project":
        words = [word for word in words if word != "logger=csv"]
    monkeypatch.chdir(_made(here))
    status, _, errors = program(run_main, *words)
    assert (status, len(errors.strip().splitlines())) == (1, 1), errors
    assert f"{setting} must be a name" in errors
    assert list(here.iterdir()) == []


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_report_shows_names_as_text(tmp_path, program):
    evil = "<script>alert(1)</script>"
    for pe in ("rope", evil):
        for seed in range(3):
            run = Ledger(tmp_path / "ledger").run(identity({"name": pe}, seed=seed))
            record_checkpoint(run, 4, 1.0 + seed / 10)
    status, _, err = program(report.main, tmp_path / "ledger", "--out", tmp_path / "out")
    assert status == 0, err
    page = (tmp_path / "out" / "report.html").read_text()
    assert "alert(1)" in page
    assert evil not in page


SECRETS = {"WANDB_API_KEY": "5ec2e7" * 6 + "beef", "AWS_SECRET_ACCESS_KEY": "hush-hush-1234", "HF_TOKEN": "hf_hushhush"}


@pytest.mark.long
def test_no_secret_of_the_environment_is_stored(tmp_path):
    ledger = tmp_path / "ledger"
    words = [*SWEEP, "pe=rope", "seed=0", f"ledger={ledger}", "logger=wandb", "study_name=question", "epochs=1"]
    env = SECRETS | {"WANDB_MODE": "offline"}
    status, _, errors = Program(words, tmp_path / "printed", env=env).wait()
    assert status == 0, errors
    files = [path for path in ledger.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    for path in files:
        content = path.read_bytes()
        assert [name for name, secret in SECRETS.items() if secret.encode() in content] == [], path


@pytest.mark.slow  # a program that trains again
def test_training_does_not_continue_from_a_state_of_another_run(ledger, tmp_path, sound):
    """Its digest and shapes fit: otherwise one seed's weights would pass as another's."""
    runs = {run.summary(4)["name"]: run for run in Ledger(ledger).runs()}
    one, other = (runs[f"rope-pattern-d1-e4-s{seed}"] for seed in (0, 1))
    ((_, state),) = other.states.files()
    for _, own in one.states.files():
        own.unlink()
    shutil.copy(state, one.folder)
    words = [*SWEEP, "epochs=20", f"ledger={ledger}", "logger=none"]
    status, _, errors = Program(words, tmp_path / "printed").wait()
    assert status == 0, errors
    assert f"must be a state of its run, got one of {other.name}" in errors
    fresh = tmp_path / "fresh"
    assert Program([*words[:-2], f"ledger={fresh}", "logger=none"], tmp_path / "printed").wait()[0] == 0
    expected = cells(fresh)
    assert {name: cells(ledger)[name] == expected[name] for name in expected} == dict.fromkeys(expected, True)
    assert Run(one.folder).checkpoints() == [1, 4, 16, 20]
