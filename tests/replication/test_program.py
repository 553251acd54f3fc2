"""pe-lab replicate: it trains what is missing by pe-lab run, and says what became of each entry."""

import csv
import re
from pathlib import Path

import pytest

from pe_lab.replication import __main__ as program
from pe_lab.replication import load_entries

TABLE = """# A table
title: A paper
paper: https://arxiv.org/abs/0000.00000
source: table 1
seen: true
unit: share
tolerance: 0.3
measured: {trained: accuracy, longer: exact_match@2, perplexity: perplexity}
setting: [data=copy, data.longest=4, data.symbols=8, data.train=200, data.validation=20, data.test=20, model.depth=1,
  model.width=16, model.num_heads=2, epochs=1, trainer.device=cpu]
minutes: 0.1
cells:
  right:
    says: It is not learned at once.
    setting: [pe=none]
    published: {trained: {mean: 0.15, sd: 0.05, seeds: 5}, longer: {mean: 0, sd: 0.01, seeds: 5}}
  wrong:
    says: It is learned at once.
    setting: [pe=none]
    published: {trained: {mean: 0.95, sd: 0.01, seeds: 5}, longer: {mean: 1, sd: 0.01, seeds: 5}}
  dear:
    says: It takes long.
    setting: [pe=rope]
    published: {trained: 1}
    minutes: 1000
  other:
    says: It needs what is not there.
    lacks: encoder
    published: {perplexity: 2}
"""

CLAIMS = """# Claims
title: A paper
paper: https://arxiv.org/abs/0000.00000
source: table 1
seen: true
unit: nats
tolerance: 0.3
minutes: 0.1
cells:
  near:
    says: Both learn as much.
    studies:
      tiny: [data=copy, data.longest=4, data.symbols=8, data.train=200, data.validation=20, data.test=20, model.depth=1,
        model.width=16, model.num_heads=2, epochs=1, trainer.device=cpu, "pe=none,rope"]
    universe: {optimizer.lr: [0.00001, 0.0001]}
    tests:
      - {says: "`none` − `rope`", value: {metric: loss, pe: none}, minus: {pe: rope}, near: 0}
  wrong:
    says: It is learned at once.
    studies: {wrong: ["pe=ropes,none"]}
    tests:
      - {says: loss, value: {metric: loss, pe: none}, below: 0.1}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conf/replication").mkdir(parents=True)
    (tmp_path / "conf/replication/mine.yaml").write_text(TABLE)
    return tmp_path


def replicated(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> int | str | None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["pe-lab replicate", "--config-dir", str(folder / "conf"), *words])
    with pytest.raises(SystemExit) as end:
        program.main()
    return end.value.code


@pytest.mark.long
def test_what_is_missing_is_trained_and_judged(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replicated(monkeypatch, folder, "mine", "--list") == 0
    assert "4 not run" in capsys.readouterr().out
    assert not (folder / "ledger").exists()

    assert replicated(monkeypatch, folder, "mine", "workers=1", "--out", "out") == 0
    printed = capsys.readouterr().out
    assert re.search(r"^mine/right: reproduced$", printed, re.MULTILINE)
    assert re.search(r"^mine/wrong: not reproduced$", printed, re.MULTILINE)
    assert re.search(r"^mine/dear: not run: needs 50.0 core-hours$", printed, re.MULTILINE)
    assert re.search(r"^mine/other: not run: pe_lab has no encoder$", printed, re.MULTILINE)
    runs = [path for path in (folder / "ledger").iterdir() if (path / "run.json").exists()]
    assert len(runs) == 3  # both entries are of the same trainings

    with (folder / "out/values.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 3
    assert {row["entry"] for row in rows} == {"mine/right", "mine/wrong"}

    assert {row["device"] for row in rows} == {"cpu"}

    written = (folder / "out/values.csv").read_text()
    assert replicated(monkeypatch, folder, "mine", "--list", "ledger=empty", "--out", "out") == 0
    assert re.search(r"^mine/wrong: not reproduced$", capsys.readouterr().out, re.MULTILINE)
    assert (folder / "out/values.csv").read_text() == written  # a ledger that lacks them takes nothing away
    more = written + "".join(f"mine/right,{label},3,0.5,cpu,0.1\n" for label in ("trained", "longer"))
    (folder / "out/values.csv").write_text(more)
    assert replicated(monkeypatch, folder, "mine", "--list", "--out", "out") == 0
    assert sorted((folder / "out/values.csv").read_text().split()) == sorted(more.split())  # nor does one with fewer
    capsys.readouterr()

    monkeypatch.setattr(program, "train_entry", lambda *_: pytest.fail("everything is there"))
    assert replicated(monkeypatch, folder, "mine/right", "--list") == 0
    assert "mine/right: reproduced" in capsys.readouterr().out


def test_where_a_ledger_has_too_few_seeds_the_shipped_values_are_judged(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        ("mine/right", label, seed, 0.15 * (label == "trained"))
        for label in ("trained", "longer")
        for seed in (0, 1, 2, 3, 4)
    ]
    shipped = "entry,label,seed,value,device,minutes\n" + "".join(
        f"{entry},{label},{seed},{value + seed / 1000},cpu,0.1\n" for entry, label, seed, value in rows
    )
    (folder / "shipped.csv").write_text(shipped)
    monkeypatch.setattr(program, "SHIPPED_FILE", folder / "shipped.csv")
    assert replicated(monkeypatch, folder, "mine/right", "mine/wrong", "--list", "--out", "out") == 0
    printed = capsys.readouterr().out
    assert "mine/right: reproduced" in printed
    assert printed.count("shipped") == 2  # a word for each value
    assert "mine/wrong: not run" in printed
    assert not (folder / "out/values.csv").read_text().splitlines()[1:]  # which has values of the ledger only

    (folder / "own").mkdir()
    (folder / "own/values.csv").write_text(shipped.replace("0.15", "0.95"))
    assert replicated(monkeypatch, folder, "mine/right", "--list", "--out", "own") == 0
    printed = capsys.readouterr().out
    assert "shipped" not in printed
    assert "mine/right: mixed" in printed

    assert replicated(monkeypatch, folder, "mine/right", "--list", "attention=reference") == 0
    assert "mine/right: not run" in capsys.readouterr().out  # shipped values are of the default


@pytest.mark.long
def test_a_universe_is_trained_judged_and_drawn(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "conf/replication/asked.yaml").write_text(CLAIMS)
    assert replicated(monkeypatch, folder, "asked/near", "--universe", "workers=1", "--out", "out") == 0
    printed = capsys.readouterr().out
    assert re.search(r"^asked/near/universe: reproduced$", printed, re.MULTILINE)
    assert "holds in 2, is contradicted in 0, is undecided in 0 of 2 settings" in printed
    page = (folder / "out/asked-near-universe.html").read_text()
    assert "<svg" in page
    assert "optimizer.lr=0.0001" in page
    runs = [path for path in (folder / "ledger").iterdir() if (path / "run.json").exists()]
    assert len(runs) == 2 * 2 * 3  # two rates, two encodings, three seeds
    with (folder / "out/values.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["entry"] for row in rows] == ["asked/near/universe"] * 6

    monkeypatch.setattr(program, "train_entry", lambda *_: pytest.fail("everything is there"))
    assert replicated(monkeypatch, folder, "asked", "--universe", "--list", "ledger=empty", "--out", "out") == 0
    assert "100%" in capsys.readouterr().out  # from the table


def test_a_claim_whose_setting_does_not_compose_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "conf/replication/asked.yaml").write_text(CLAIMS)
    assert replicated(monkeypatch, folder, "asked/wrong", "workers=1") == 1
    out, error = capfd.readouterr()
    assert "asked/wrong: not run: there is no study wrong" in out
    (refused,) = [line for line in error.splitlines() if line.startswith("error: ")]
    assert "ropes" in refused
    assert not (folder / "ledger").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine/rigth"], "NAME='mine/rigth': did you mean mine/right"),
        (["minne/rigth"], "NAME='minne/rigth': did you mean mine/right"),
        (["2410.99999"], "NAME must be one of"),
        (["minee"], "NAME='minee': did you mean mine"),
        (["mine", "pe=rope"], "replicate takes ledger, workers, logger, hydra/launcher"),
        (["mine", "--list", "--out", "damaged"], "damaged/values.csv must be a table of pe-lab replicate"),
        (["mine", "--seeds", "2"], "argument --seeds"),
        (["mine", "--universe"], "--universe needs a claim that declares one"),
        (["mine", "--most", "0"], "argument --most"),
    ],
)
def test_a_wrong_word_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (folder / "damaged").mkdir()
    (folder / "damaged/values.csv").write_text("entry,label,seed,value\nmine/right,trained,0,1\n")
    assert replicated(monkeypatch, folder, *words) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


def test_a_training_that_fails_is_said_and_others_are_judged(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = []
    monkeypatch.setattr(program, "train_entry", lambda entry, *_: trained.append(entry.name) or 1)
    assert replicated(monkeypatch, folder, "mine") == 1
    assert trained == ["mine/right", "mine/wrong"]
    assert "mine/right: not run" in capsys.readouterr().out
    assert replicated(monkeypatch, folder, "mine/dear") == 1
    assert trained[2:] == ["mine/dear"]  # named, it is trained whatever it costs


@pytest.mark.parametrize("name", ["2410.02140", "arXiv:2410.02140", "https://arxiv.org/abs/2410.02140"])
def test_a_paper_stands_for_its_entries(name: str) -> None:
    entries = load_entries()
    found = [entry.name for entry in program.select_entries(entries, [name])]
    assert found == [key for key, entry in entries.items() if entry.paper == "https://arxiv.org/abs/2410.02140"]
    assert len({entry.partition("/")[0] for entry in found}) > 1  # several tables
