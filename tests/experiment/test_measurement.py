"""What is measured on a trained cell: recorded once, from its weights, and never by training again."""

import json
import re
import shutil
from collections.abc import Callable

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from faults.programs import Program
from helpers.configs import TINY, in_ledger
from pe_lab import config
from pe_lab.attention import sdpa
from pe_lab.encodings.families.rotary_far import ReRoPE
from pe_lab.encodings.stack import Stack
from pe_lab.experiment.job import Job
from pe_lab.experiment.measurement import Datasets, load_model, use_policy
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import CHECKPOINT_FILES, WEIGHTS_FILE
from pe_lab.model.transformer import Transformer
from pe_lab.probes.rank import RankProbe
from pe_lab.system.files import LedgerError
from pe_lab.training.decoding import exact_match_generated
from pe_lab.training.metrics import evaluate


def cell(ledger, *overrides: str) -> Job:
    return Job.from_config(in_ledger(ledger, *TINY, "logger=none", "epochs=1", *overrides, multirun=False)[0])


def serve(made: Job) -> Job:
    made.request()
    made.complete(wait=True)
    made.withdraw()
    return made


@pytest.fixture
def start(tmp_path_factory) -> Callable[..., Program]:
    """Starts the program that trains, or the one that only measures, on a ledger."""

    def begin(ledger, *overrides: str, train: bool) -> Program:
        words = [*TINY, "logger=none", "epochs=1", "hydra/launcher=basic", f"ledger={ledger}", *overrides]
        return Program(words, tmp_path_factory.mktemp("printed"), train=train)

    return begin


def load(job: Job) -> Transformer:
    return load_model(job.cell, job.run)


def values(made: Job, **asked) -> dict[str, float]:
    asked = {"policy": "raw", "offset": 0} | asked
    (request,) = [one for one in made.cell.requests if asked.items() <= one.items()]
    rows = made.records.get(request)
    return dict(zip(rows["metric"], rows["value"], strict=True))


def test_lengths_are_recorded_when_a_cell_is_trained_and_afterwards_alike(tmp_path):
    at_once = serve(cell(tmp_path / "at once", "evaluate.lengths=[1,2,4]"))
    serve(cell(tmp_path / "later"))
    cost = cell(tmp_path / "later").run.cost()
    later = serve(cell(tmp_path / "later", "evaluate.lengths=[1,2,4]"))
    assert later.run.cost() == cost
    assert not later.missing
    for length in (2, 4):
        assert values(at_once, length=length) == values(later, length=length)
    weights = [made.run.checkpoint(1) / "weights.safetensors" for made in (at_once, later)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_record_is_what_evaluate_says_on_the_longer_data(tmp_path):
    made = serve(
        cell(tmp_path, "pe=rope", "evaluate.lengths=[2]", "evaluate.policy=[raw,yarn]", "evaluate.offset=[0,9]")
    )
    model, data = load(made), made.cell.dataset.longer(2)
    autocast = torch.autocast("cpu", enabled=False)
    found = values(made, length=2)
    assert {name: found[name] for name in found if "/" not in name} == evaluate(model, data, "test", autocast)
    assert found["bayes/loss"] == 0
    assert found["position_blind/loss"] == pytest.approx(data.floors("test")["position_blind"]["loss"])
    with use_policy(model, "yarn", 2):
        expected = evaluate(model, data, "test", autocast, offset=9)
    moved = values(made, length=2, policy="yarn", offset=9)
    assert moved["loss"] == expected["loss"] != found["loss"]
    assert len(list(made.run.folder.glob("records/1/*/rows.csv"))) == 4


@pytest.mark.long
def test_policies_with_options_are_recorded_by_their_names(tmp_path):
    """The window makes a difference, and far pairs are those of the class."""
    policies = ["raw", "rerope:3", "rerope:5", "self_extend"]
    made = serve(cell(tmp_path, "pe=rope", "evaluate.lengths=[2]", f"evaluate.policy=[{','.join(policies)}]"))
    found = {name: values(made, length=2, policy=name)["loss"] for name in policies}
    assert len(set(found.values())) == 4
    model, data = load(made), made.cell.dataset.longer(2)
    sizes = model.encodings.first.sizes
    model.encodings = Stack([ReRoPE(sizes, window=3)], model.encodings.depth)
    assert evaluate(model, data, "test", torch.autocast("cpu", enabled=False))["loss"] == found["rerope:3"]


def test_generated_answers_are_recorded_beside_those_with_the_right_tokens_shown(tmp_path):
    task = ["data=copy", "data.longest=3", "data.symbols=8", "data.train=400", "data.test=29", "data.validation=20"]
    asked = ["evaluate.lengths=[1,2]", "evaluate.offset=[0,5]", "evaluate.decode=greedy"]
    made = serve(cell(tmp_path, *task, *asked, "pe=rope", "epochs=3", "trainer.batch_size=64", "logger=csv"))
    model, autocast = load(made), torch.autocast("cpu", enabled=False)
    for length, data in ((1, made.cell.dataset), (2, made.cell.dataset.longer(2))):
        for offset in (0, 5):
            found = values(made, kind="decode", length=length, offset=offset)
            assert found == exact_match_generated(model, data, "test", autocast, offset)
            assert found["exact_match_generated"] == evaluate(model, data, "test", autocast, offset)["exact_match"]
    assert not made.missing

    (path,) = (tmp_path / "csv").rglob("metrics.csv")
    logged = pd.read_csv(path).dropna(subset="length/tokens")
    assert logged["length/tokens"].tolist() == [9, 15, 9, 15]
    for length, shift, row in ((1, "", 0), (2, "", 1), (1, "+5", 2), (2, "+5", 3)):
        point = logged.iloc[row]
        expected = values(made, kind="decode", length=length, offset=int(shift or 0))["exact_match_generated"]
        assert point[f"length/raw{shift}/exact_match_generated"] == expected
        assert point[f"length/raw{shift}/loss"] > 0


def test_measuring_chooses_attention_again_where_the_implementation_of_training_takes_no_cache(tmp_path, monkeypatch):
    """On a GPU training takes triton where it is trusted; auto then takes another one to decode."""
    task = ["data=copy", "data.longest=3", "data.train=400", "data.test=9", "data.validation=9"]
    made = cell(tmp_path, *task, "evaluate.decode=greedy", "pe=rope", "trainer.batch_size=64")
    keyless = sdpa.refusal_reason
    monkeypatch.setattr(
        sdpa,
        "refusal_reason",
        lambda q, terms, layout, *rest: "no keys" if layout.keys else keyless(q, terms, layout, *rest),
    )
    made = serve(made)
    assert made.cell.implementation == "sdpa"
    assert set(values(made, kind="decode", length=1)) == {"exact_match_generated"}
    assert not made.missing


def test_an_implementation_that_takes_no_cache_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    asked = ["data=copy", "attention=triton", "trainer.device=cpu"]
    with pytest.raises(
        ValueError, match="evaluate.decode=greedy cannot be computed with attention.*=triton: triton ta"
    ):
        cell(tmp_path, *asked, "evaluate.decode=greedy")
    assert cell(tmp_path, *asked, "pe=normalized", "evaluate.decode=greedy").cell.implementation == "triton"
    assert cell(tmp_path, *asked).cell.implementation == "triton"


@pytest.mark.long
def test_moving_all_positions_changes_what_is_absolute_and_not_what_is_relative(tmp_path):
    for pe, changes in (("rope", False), ("alibi", False), ("none", False), ("sinusoidal", True), ("learnable", True)):
        made = serve(cell(tmp_path, f"pe={pe}", "evaluate.offset=[37]"))
        moved, stays = values(made, length=1, offset=37)["loss"], made.run.summary(1)["test"]["loss"]
        assert (abs(moved - stays) > 1e-3) == changes, pe


def test_a_policy_leaves_the_model_as_it_was(tmp_path):
    model = load(serve(cell(tmp_path)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    encodings = model.encodings
    with pytest.raises(RuntimeError), use_policy(model, "pi", 4):
        assert model.encodings is not encodings
        raise RuntimeError
    assert model.encodings is encodings
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_trained_model_is_that_of_the_weights_file(tmp_path):
    made = serve(cell(tmp_path, "pe=learnable"))
    weights = load_file(made.run.checkpoint(1) / "weights.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in load(made).state_dict().items())
    test = evaluate(load(made), made.cell.dataset, "test", torch.autocast("cpu", enabled=False))
    assert test == made.run.summary(1)["test"]


@pytest.mark.long
def test_measuring_does_not_change_the_training_that_goes_on(tmp_path):
    everything = [
        "evaluate.lengths=[1,2]",
        "evaluate.policy=[raw,randomized]",
        "probe=[position,attention,rank,subspace]",
    ]
    for epochs in (1, 3):
        measured = serve(cell(tmp_path / "measured", *everything, f"epochs={epochs}"))
    plain = serve(cell(tmp_path / "plain", "epochs=3"))
    for epochs in (1, 3):
        assert all(Records(measured.run, epochs).has(request) for request in measured.cell.requests)
    weights = [made.run.checkpoint(3) / "weights.safetensors" for made in (measured, plain)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_damaged_record_is_refused(tmp_path):
    made = serve(cell(tmp_path, "evaluate.lengths=[2]"))
    (path,) = made.run.folder.glob("records/1/*/rows.csv")
    path.write_text(path.read_text().replace("loss", "Loss"))
    with pytest.raises(LedgerError, match="it is not read; the command that made it, run again"):
        values(made, length=2)


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("rank cannot")

    monkeypatch.setattr(RankProbe, "__call__", fail)


def test_positions_are_probed_on_longer_problems_which_are_all_in_the_test_split(tmp_path):
    sizes = ["data=addition", "data.train=512", "data.validation=8", "data.test=40"]
    made = serve(cell(tmp_path, *sizes, "evaluate.lengths=[1,2]", "probe=[position]"))
    assert not made.missing
    found = [request for request in made.cell.requests if request["kind"] == "probe"]
    assert [request.get("length") for request in found] == [None, 2]
    for request in found:
        assert {"r2", "r2_permuted", "r2_from_token"} <= set(made.records.get(request)["metric"])


def test_what_cannot_be_measured_keeps_nothing_else_from_being_trained_or_measured(tmp_path, monkeypatch):
    broken(monkeypatch)
    one = cell(tmp_path, "probe=[rank,position]", "evaluate.lengths=[2]", "epochs=1")
    two = cell(tmp_path, "epochs=2")
    for made in (one, two):
        made.request()
    one.complete(wait=True)
    assert one.is_trained
    assert two.is_trained
    assert one.failure["reason"].endswith("ValueError: rank cannot")
    found = [(request.get("probe"), one.records.has(request)) for request in one.cell.requests]
    assert found == [(None, True), *[("rank", False)] * 2, *[("position", True)] * 2]
    assert two.failure is None
    assert not two.missing
    other = cell(tmp_path, "probe=[attention]", "epochs=1")
    serve(other)
    assert not other.missing
    monkeypatch.undo()
    assert not serve(one).missing
    assert one.failure is None


def test_a_record_is_of_the_weights_of_its_checkpoint(tmp_path):
    made = serve(cell(tmp_path, "probe=[rank]"))
    before = made.records.get(made.cell.requests[0])
    shutil.move(made.run.checkpoint(1), tmp_path / "away")
    state = next(made.run.folder.glob("state-*"))
    state.unlink()
    other = cell(tmp_path / "other", "probe=[rank]", "seed=5")
    serve(other)
    with made.run.recording(1) as folder:  # as if trained elsewhere, to other numbers
        for name in (*CHECKPOINT_FILES, WEIGHTS_FILE):
            shutil.copy(other.run.checkpoint(1) / name, folder)
        (folder / "summary.json").write_text(json.dumps(other.run.summary(1) | {"run": made.run.name}))
    assert made.missing
    serve(made)
    assert not made.records.get(made.cell.requests[0]).equals(before)


def test_a_record_says_what_it_was_measured_in(tmp_path):
    made = serve(cell(tmp_path, "probe=[rank]"))
    (path,) = made.run.folder.glob("records/1/*/environment.json")
    assert json.loads(path.read_text())["threads"] == 1


@pytest.mark.slow
def test_two_processes_measure_once(start, tmp_path):
    words = ["-m", "seed=0,1", "evaluate.lengths=1,2", "probe=position,rank"]
    assert start(tmp_path, "-m", "seed=0,1", train=True).wait()[0] == 0
    both = [start(tmp_path, *words, train=False) for _ in range(2)]
    (status, out, err), other = (process.wait() for process in both)
    assert (status, other[0]) == (0, 0), (err, other[2])
    assert out == other[1]
    assert len(list(tmp_path.glob("*/records/1/*/rows.csv"))) == 10  # of each cell a length, two probes at two lengths
    assert not list(tmp_path.glob("*/records/1/.s-*"))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["evaluate.lengths=[]"], "evaluate.lengths must be a list, each at least 1, got []"),
        (["evaluate.policy=[]"], "evaluate.policy must be a list, each one of raw"),
        (["evaluate.lengths=[10000]"], "evaluate.lengths must lead to at most 131072 tokens, got 10000 times 16"),
        (["evaluate.offset=[99999999999]"], "evaluate.offset must be a list, each an integer in 0 ... 2^24"),
        (["evaluate.lengths=[16]"], "evaluate.lengths must be smaller for data=structured, got 16"),
        (["evaluate.lengths=[0.5]"], "evaluate.lengths must be a list, each at least 1, got [0.5]"),
        (["evaluate.policy=[yarn]", "pe=alibi"], "evaluate.policy=yarn is defined for rope, got alibi"),
        (["evaluate.policy=[rerope]", "pe=alibi"], "evaluate.policy=rerope is defined for rope, got alibi"),
        (["evaluate.policy=[rerope:0]", "pe=rope"], "evaluate.policy must be a list, each one of raw, pi, ntk"),
        (
            ["evaluate.policy=[rerope]", "pe=rope", "data=bag"],
            "evaluate.policy=rerope is defined for causal attention only, this is bidirectional: use raw",
        ),
        (
            ["evaluate.policy=[rerope]", "pe=rope", "attention.implementation=sdpa"],
            "evaluate.policy=rerope cannot be computed with attention.implementation=sdpa: sdpa has no "
            "place for content_bias",
        ),
        (["evaluate.policy=[ya]"], "evaluate.policy must be a list, each one of raw, pi, ntk"),
        (["evaluate.offset=[-1]"], "evaluate.offset must be a list, each an integer in 0 ... 2^24, got [-1]"),
        (
            ["pe=learnable", "evaluate.offset=[500]"],
            "learnable has positions 0 to 511: position 515 is beyond its table",
        ),
        (["pe=learnable", "evaluate.lengths=[4]", "pe.max_len=63"], "learnable has positions 0 to 62"),
        (["evaluate.decode=beam"], "evaluate.decode must be one of none, greedy, got 'beam'"),
        (["evaluate.decode=greedy"], "evaluate.decode=greedy needs a task whose answer is written token by token"),
        (
            ["probe=[position]", "data=addition", "data.train=512", "data.test=1", "evaluate.lengths=[1,2]"],
            "probe=position at evaluate.lengths above 1 needs 2 test sequences of data=addition, one to fit and one to "
            "score, got 1: set data.test",
        ),
        (["probe=[weather]"], "probe must be one of attention, position, rank, subspace, got 'weather'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_training(overrides, expected, tmp_path):
    with pytest.raises(ValueError, match=re.escape(expected)) as caught:
        cell(tmp_path, *overrides)
    assert "\n" not in str(caught.value)


def test_lists_need_no_brackets():
    given = ["evaluate.lengths=1,2", "probe=rank", "pe=rope,alibi", "evaluate.offset=[0,4]", "-m"]
    assert config.as_lists(given) == ["evaluate.lengths=[1,2]", "probe=[rank]", *given[2:]]
    assert config.as_lists(["probe=rank,", "probe=choice(rank)"]) == ["probe=[rank]", "probe=choice(rank)"]


@pytest.mark.slow
def test_the_program_measures_what_is_trained_and_nothing_else(start, tmp_path):
    asked = ["-m", "pe=rope,alibi", "seed=0,1", "evaluate.lengths=1,2", "probe=rank"]
    status, _, err = start(tmp_path, *asked, train=False).wait()
    assert status == 1
    assert err.startswith("error: 4 of 4 cells are not in the ledger")
    assert not list(tmp_path.iterdir())
    assert start(tmp_path, "-m", "pe=rope,alibi", "seed=0,1", train=True).wait()[0] == 0
    costs = {path: path.read_text() for path in tmp_path.glob("*/cost.json")}
    status, out, err = start(tmp_path, *asked, "study_name=mine", "hydra/launcher=cores", train=False).wait()
    assert status == 0, err
    assert "length 1" in out
    assert "effective rank" in out
    assert {path: path.read_text() for path in tmp_path.glob("*/cost.json")} == costs
    assert len(list(tmp_path.glob("*/records/1/*/rows.csv"))) == 12  # of each cell a length, a probe at two lengths
    rows = pd.read_csv(tmp_path / "studies" / "mine" / "records.csv")
    assert set(rows["kind"]) == {"length", "probe"}
    assert set(rows["length"].dropna()) == {1, 2}
    again = start(tmp_path, *asked, "study_name=mine", train=False).wait()
    assert again[0] == 0
    *tables, last = again[1].splitlines()
    assert tables == out.splitlines()[:-1]
    assert "mine: 4 cells" in last


def test_a_cell_that_was_measured_is_logged_in_a_run_of_its_own(tmp_path):
    serve(cell(tmp_path, "logger=csv"))
    made = serve(cell(tmp_path, "logger=csv", "evaluate.lengths=[2]"))
    training, evaluation = sorted((tmp_path / "csv").rglob("metrics.csv"), key=lambda path: len(path.parent.name))
    assert training.parent.name == made.run.name
    assert evaluation.parent.name.startswith(f"{made.run.name}-evaluation-")
    logged = pd.read_csv(evaluation)
    assert logged["length/tokens"].tolist() == [16, 32]
    losses = [made.run.summary(1)["test"]["loss"], values(made, length=2)["loss"]]
    assert logged["length/raw/loss"].tolist() == pytest.approx(losses)
    assert "length/raw/position_blind/loss" in logged


def test_a_second_evaluation_logs_the_whole_curve_again(tmp_path):
    serve(cell(tmp_path, "evaluate.lengths=[1,2]"))
    made = serve(cell(tmp_path, "logger=csv", "evaluate.lengths=[1,2,4]", "probe=[attention]"))
    (path,) = (tmp_path / "csv").rglob("metrics.csv")
    logged = pd.read_csv(path)
    assert logged["length/tokens"].dropna().tolist() == [16, 32, 64]
    assert logged["probe/layer"].dropna().tolist() == [1, 1, 1]
    entropies = [logged[f"probe/attention{at}/entropy/head1"].dropna().item() for at in ("", "@2", "@4")]
    assert entropies == sorted(entropies)  # more to look at
    assert len(set(entropies)) == 3
    assert not made.missing


def test_floors_are_computed_by_the_first_cell_that_asks(tmp_path, monkeypatch):
    first = cell(tmp_path, "pe=rope")
    floors = Datasets(first.cell).floors()
    second = cell(tmp_path, "pe=alibi")
    datasets = Datasets(second.cell)
    monkeypatch.setattr(datasets.at(), "floors", None)
    assert datasets.floors() == floors == json.loads(json.dumps(first.cell.dataset.floors("test")))
    assert Datasets(cell(tmp_path, "seed=1").cell).floors() != floors
    assert Datasets(cell(tmp_path).cell).floors(2) != floors


def test_floors_that_were_changed_are_set_aside_and_made_again(tmp_path, capsys):
    sound = Datasets(cell(tmp_path).cell).floors()
    (path,) = (tmp_path / "floors").iterdir()
    changed = json.loads(path.read_text())
    changed["value"]["bayes"]["loss"] = 7.0
    path.write_text(json.dumps(changed))
    assert Datasets(cell(tmp_path).cell).floors() == sound
    assert "must have the value that it has the digest of" in capsys.readouterr().err
    assert [json.loads(kept.read_text()) for kept in (tmp_path / ".aside").rglob("*.json")] == [changed]


TEXT = ["data=clm", "trainer.batch_size=32", "data.length=16", "data.train_sequences=64", "data.test_sequences=8"]


def test_the_loss_of_a_sliding_window_is_that_of_each_token_after_its_context(tmp_path):
    made = serve(cell(tmp_path, *TEXT, "pe=alibi", "evaluate.lengths=[1,2]", "evaluate.stride=4"))
    model = load(made)
    for length in (1, 2):
        data = made.cell.dataset if length == 1 else made.cell.dataset.longer(length)
        tokens, stream = data.task.length, torch.from_numpy(data.text.stream("test").astype(int))
        losses = []
        for begin in data.strided(4).windows["test"].starts.tolist():
            window = stream[begin : begin + tokens][None]
            with torch.no_grad():
                logits = model(window, data.batch("test", torch.tensor([0])).layout)[0, -4:]
            asked = stream[begin + tokens - 3 : begin + tokens + 1]
            losses.append(torch.nn.functional.cross_entropy(logits, asked, reduction="none"))
        loss = torch.cat(losses).mean().item()
        found = values(made, kind="stride", length=length, stride=4)
        assert found["loss_stride_4"] == pytest.approx(loss, rel=1e-5)
        assert found["perplexity_stride_4"] == pytest.approx(torch.tensor(loss).exp().item(), rel=1e-5)
        assert found["bits_per_byte_stride_4"] == pytest.approx(loss / torch.tensor(2.0).log().item(), rel=1e-5)


def test_a_window_that_moves_by_its_length_has_the_loss_of_the_test(tmp_path):
    made = serve(cell(tmp_path, *TEXT, "pe=rope", "evaluate.stride=16"))
    assert values(made, kind="stride")["loss_stride_16"] == made.run.summary(1)["test"]["loss"]


@pytest.mark.parametrize(
    "words", [["data=copy", "trainer.batch_size=32", "evaluate.stride=4"], [*TEXT, "evaluate.stride=17"]]
)
def test_a_stride_that_cannot_be_is_refused_before_training(tmp_path, words):
    with pytest.raises(ValueError, match=r"^evaluate\.stride must be .*, got \d+$"):
        cell(tmp_path, *words)
