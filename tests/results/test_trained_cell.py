"""`pe_lab.load` gives the one cell that was asked for, with its weights, or says in one line why not."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import pe_lab
from helpers.configs import in_ledger
from pe_lab.experiment import sweep
from pe_lab.experiment.job import Job
from pe_lab.experiment.measurement import load_model
from pe_lab.ledger.run import WEIGHTS_FILE, Run
from pe_lab.probes.attention import AttentionProbe
from pe_lab.results import trained_cell
from pe_lab.results.trained_cell import load_checkpoint_cell
from pe_lab.system.files import CHECKSUMS_FILE, LedgerError, file_digest, write_json
from pe_lab.system.plain import read_yaml
from pe_lab.training.metrics import evaluate

TINY = ["model.width=16", "model.num_heads=2", "trainer.batch_size=4522", "trainer.device=cpu", "logger=none"]
GRID = ["pe=rope,alibi", "model.depth=1,2", "epochs=1,2", "seed=0"]
ONE = {"pe": "alibi", "depth": 2, "epochs": 1}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a ledger of 8 cells, and of two more in a study, which differ from one of them in the learning rate."""
    folder = tmp_path_factory.mktemp("ledger")
    sweep.run_cells(in_ledger(folder, *TINY, *GRID))
    more = ["pe=rope", "model.depth=1", "epochs=1", "optimizer.lr=1e-4,1e-5", "study_name=rates"]
    sweep.run_cells(in_ledger(folder, *TINY, *more))
    return folder


@pytest.fixture
def damaged(ledger: Path, tmp_path: Path) -> Path:
    """Return a copy of the ledger that a test may damage."""
    return Path(shutil.copytree(ledger, tmp_path / "ledger"))


def test_a_cell_is_what_was_trained_and_measured(ledger: Path) -> None:
    found = pe_lab.load(ledger, **ONE)
    (cfg,) = in_ledger(ledger, *TINY, "pe=alibi", "model.depth=2", "epochs=1", multirun=False)
    job = Job.from_config(cfg)
    for name, value in load_model(job.cell, job.run).state_dict().items():
        assert torch.equal(value, found.model.state_dict()[name]), name
    assert (found.run.name, found.name) == (job.run.name, "alibi-d2-e1-s0")
    assert found.config.optimizer.lr == cfg.optimizer.lr
    assert found.metrics == found.summary["test"]
    measured = evaluate(found.model, found.data, "test", job.cell.autocast())
    assert measured == pytest.approx(found.metrics)
    assert not found.model.training
    rows = AttentionProbe()(found.model, found.data, found.config.seed)
    assert {row["layer"] for row in rows} == {1, 2}


def test_to_load_a_cell_reads_only_the_files_of_its_encoding_and_its_task(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read the files of all encodings takes half a second."""
    read: list[bytes] = []
    monkeypatch.setattr(trained_cell, "read_yaml", lambda content: read.append(content) or read_yaml(content))
    pe_lab.load(ledger, **ONE)
    assert len(read) == 2


@pytest.mark.parametrize(
    ("settings", "depth", "rate"),
    [
        ({"pe": "alibi", "model.depth": 2, "epochs": 1}, 2, 1e-3),
        ({"study": "rates", "lr": 1e-4}, 1, 1e-4),
        ({"pe": "rope", "optimizer.lr": 1e-5}, 1, 1e-5),
    ],
    ids=str,
)
def test_a_setting_is_named_in_full_or_by_its_last_word(ledger: Path, settings: dict, depth: int, rate: float) -> None:
    cfg = pe_lab.load(ledger, **settings).config
    assert (cfg.model.depth, cfg.optimizer.lr) == (depth, rate)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"pe": "alibi", "depth": 2}, ["got 2", "epochs (1, 2)"]),
        ({"pe": "rope", "depth": 1, "epochs": 1}, ["got 3", "optimizer.lr (", "0.0001", "1e-05"]),
        ({"pe": "roppe"}, ["pe='roppe'", "rope"]),
        ({"pe": "alibi", "depth": 3}, ["depth", "1, 2", "got 3", "pe=alibi"]),
        ({"pe": "alibi", "deth": 2}, ["setting='deth'", "depth"]),
        ({"study": "rate"}, ["study='rate'", "rates"]),
        ({"steps": 100}, ["steps must be one of null", "got 100"]),
        ({"foo": 1}, ["setting", "pe, data, depth", "got 'foo'", "pe-lab run --help all"]),
        ({"learning_rate": 1e-3}, ["setting='learning_rate': did you mean lr?"]),
        ({"name": "alibi"}, ["setting", "pe.name", "data.name"]),
    ],
    ids=str,
)
def test_what_does_not_name_one_cell_is_refused_in_one_line(ledger: Path, settings: dict, named: list[str]) -> None:
    with pytest.raises(ValueError, match=".") as refused:
        pe_lab.load(ledger, **settings)
    line = str(refused.value)
    assert "\n" not in line
    assert len(line) < 250
    for words in named:
        assert words in line


def test_a_cell_is_also_named_by_the_folder_that_a_program_prints(ledger: Path) -> None:
    cell = pe_lab.load(ledger, **ONE)
    assert cell.checkpoint == cell.run.checkpoint(1)
    assert pe_lab.load(cell.checkpoint).name == cell.name
    with pytest.raises(ValueError, match="pe must be one of alibi"):
        pe_lab.load(cell.checkpoint, pe="rope")
    assert pe_lab.load(ledger / "studies" / "rates", lr=1e-5).config.optimizer.lr == 1e-5


def test_a_ledger_that_is_no_path_is_refused() -> None:
    with pytest.raises(TypeError, match="ledger must be the path of a folder, got 5"):
        pe_lab.load(5)  # type: ignore[arg-type]


def test_the_text_of_a_cell_names_its_attributes_with_what_they_hold(ledger: Path) -> None:
    cell = pe_lab.load(ledger, **ONE)
    first, *rest = repr(cell).splitlines()
    assert first == f"TrainedCell {cell.name}"
    shown = dict(line.split(maxsplit=1) for line in rest)
    assert all(hasattr(cell, name.removeprefix(".")) for name in shown)
    assert f"loss {cell.metrics['loss']:.4g}" in shown[".metrics"]
    assert f"bayes {cell.summary['floors']['bayes']['loss']:.4g}" in shown[".summary"]


def test_the_history_is_the_validation_by_step(ledger: Path) -> None:
    long = pe_lab.load(ledger, **ONE | {"epochs": 2})
    history = long.history
    assert history.index.name == "step"
    assert history.index[-1] == long.summary["steps"]
    assert history["loss"].notna().all()
    assert history.iloc[:1].equals(pe_lab.load(ledger, **ONE).history.iloc[:1])


def test_sequences_of_ones_own_have_the_logits_of_the_model(ledger: Path) -> None:
    cell = pe_lab.load(ledger, **ONE)
    batch = cell.data.batch("test", torch.arange(3))
    tokens = batch.tokens[:, :10]  # without padding
    logits = cell.logits(tokens)
    assert torch.allclose(logits, cell.model(batch.tokens, batch.layout)[:, :10], atol=1e-5)
    assert torch.allclose(cell.logits(tokens[1].tolist()), logits[1], atol=1e-5)
    assert torch.equal(cell.predict(tokens), logits.argmax(-1))
    assert not logits.requires_grad


@pytest.mark.parametrize("tokens", [[], [1.5], [-1, 0], [[[1]]], [10**6], "abc", [[1, 2], [1]]], ids=str)
def test_other_tokens_are_refused_in_one_line(ledger: Path, tokens: object) -> None:
    with pytest.raises(ValueError, match="^tokens [^\n]*$"):
        pe_lab.load(ledger, **ONE).logits(tokens)  # type: ignore[arg-type]


def test_a_folder_without_cells_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ledger must be an existing folder, got '.*nowhere'"):
        pe_lab.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="ledger must have a finished cell, got none"):
        pe_lab.load(tmp_path)


def test_a_checkpoint_without_weights_is_refused(damaged: Path) -> None:
    folder = pe_lab.load(damaged, **ONE).run.checkpoint(1)
    (folder / WEIGHTS_FILE).rename(folder / "elsewhere")
    with pytest.raises(LedgerError, match=re.escape(str(folder))):
        pe_lab.load(damaged, **ONE)


def sign(folder: Path) -> None:
    """Write the checksums of a folder's files."""
    (folder / CHECKSUMS_FILE).unlink(missing_ok=True)
    write_json(folder / CHECKSUMS_FILE, {path.name: file_digest(path) for path in folder.iterdir()})


@pytest.mark.parametrize("target", ["os.system", "pandas.DataFrame", "pe_lab.system.files.write_text"])
def test_nothing_else_than_an_encoding_and_a_dataset_is_made(damaged: Path, target: str) -> None:
    """A ledger may be somebody else's."""
    folder = pe_lab.load(damaged, **ONE).run.checkpoint(1)
    path = folder / "config.yaml"
    settings = yaml.safe_load(path.read_text())
    for pe in ({"name": "mine", "_target_": target, "_partial_": True}, None):
        inner = {"_target_": target, "_partial_": True, "name": "inner"}
        pe = pe or {"name": "mine", "_target_": "pe_lab.encodings.PositionalEncoding", "_partial_": True, "of": inner}
        path.write_text(yaml.safe_dump(settings | {"pe": pe}))
        sign(folder)
        with pytest.raises(LedgerError, match=re.escape(target)):
            pe_lab.load(damaged, **ONE)


def test_a_report_imports_no_class_that_only_a_ledger_names(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pe_lab.load(damaged, **ONE).run
    path = run.checkpoint(1) / "config.yaml"
    pe = {"name": "alibi", "_target_": "elsewhere.Encoding", "_partial_": True}
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"pe": pe}))
    sign(run.checkpoint(1))
    monkeypatch.setattr(trained_cell, "get_object", lambda path: pytest.fail(f"{path} is imported"))
    with pytest.raises(LedgerError, match=r"elsewhere\.Encoding"):
        load_checkpoint_cell(run, 1, foreign=False)


def test_a_class_of_ones_own_that_cannot_be_imported_is_named_in_one_line(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = trained_cell.read_checkpoint_settings

    def read_own(run: Run, target: int) -> dict[str, Any]:
        settings = read(run, target)
        settings["pe"] |= {"_target_": "no_such_module.Mine", "name": "mine"}
        return settings

    monkeypatch.setattr(trained_cell, "read_checkpoint_settings", read_own)
    with pytest.raises(LedgerError, match="got no_such_module.Mine.*no_such_module.py to PYTHONPATH") as caught:
        pe_lab.load(ledger, **ONE)
    assert "\n" not in str(caught.value)
    assert "PE_LAB_CONFIG_DIR" in str(caught.value)
