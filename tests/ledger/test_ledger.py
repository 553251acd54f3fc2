"""The ledger stores, verifies and finds identities, checkpoints, requests, states and leases."""

import errno
import fcntl
import json
import multiprocessing
import os
import shutil
from contextlib import nullcontext

import pytest
from safetensors.numpy import save_file

from pe_lab.ledger import ledger as ledger_module
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.run import CHECKPOINT_FILES
from pe_lab.ledger.training_states import read_metadata
from pe_lab.system.files import CHECKSUMS_FILE, LedgerError, canonical_form, digest, file_digest


@pytest.fixture
def run(tmp_path):
    return Ledger(tmp_path).run({"pe": {"name": "rope", "theta": 10000}, "seed": 0})


def record(run, epochs, text="content"):
    with run.recording(epochs) as folder:
        for name in CHECKPOINT_FILES:
            (folder / name).write_text("{}")
        (folder / "summary.json").write_text(json.dumps({"run": run.name, "epochs": epochs, "text": text}))
        save_file({}, folder / "weights.safetensors", metadata={"of": text})


def test_equal_meanings_hash_equal():
    first = {"a": 10000, "b": {"x": 1e-3, "y": True}, "c": [0.9, 0.999]}
    second = {"c": (0.9, 0.999), "b": {"y": True, "x": 0.001}, "a": 10000.0}
    assert digest(first) == digest(second)
    assert canonical_form(second) == first


@pytest.mark.parametrize("other", [{"a": 10001}, {"a": "10000"}, {"b": 10000}, {"a": 10000, "b": None}, {"a": True}])
def test_different_meanings_hash_differently(other):
    assert digest({"a": 10000}) != digest(other)


def test_an_identity_with_nan_is_refused():
    with pytest.raises(ValueError, match="Out of range float"):
        digest({"lr": float("nan")})


def test_a_run_is_found_again_by_its_identity(run, tmp_path):
    again = Ledger(tmp_path).run({"seed": 0.0, "pe": {"theta": 10000.0, "name": "rope"}})
    assert again.folder == run.folder
    assert [found.name for found in Ledger(tmp_path).runs()] == [run.name]


@pytest.mark.parametrize("content", ["changed", "", "{", "[]", "null"])
def test_an_identity_that_does_not_match_its_name_is_not_read_and_is_set_aside_by_its_owner(
    run, tmp_path, content, capsys
):
    path = run.folder / "run.json"
    sound = path.read_text()
    content = sound.replace("10000", "500") if content == "changed" else content
    path.write_text(content)
    with pytest.raises(LedgerError):
        run.identity()
    assert path.read_text() == content
    again = Ledger(tmp_path).run({"pe": {"name": "rope", "theta": 10000}, "seed": 0})
    assert (again.folder, path.read_text()) == (run.folder, sound)
    assert [kept.read_text() for kept in (tmp_path / ".aside").rglob("run.json")] == [content]
    errors = capsys.readouterr().err
    assert errors.startswith("set aside: ")
    assert len(errors.splitlines()) == 1


def test_a_run_that_is_a_link_is_refused(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    run.folder.rename(elsewhere)
    run.folder.symlink_to(elsewhere)
    with pytest.raises(LedgerError, match="must be a folder of the ledger, got a link"):
        Ledger(tmp_path).run({"pe": {"name": "rope", "theta": 10000}, "seed": 0})


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "", "0123456789ABCDEF", "0123456789abcdef/.."])
def test_a_run_name_from_a_file_does_not_lead_out_of_the_ledger(tmp_path, name):
    with pytest.raises(LedgerError, match="must be named by 16 hexadecimal digits"):
        Ledger(tmp_path).named(name)


def test_a_checkpoint_is_recorded_completely_or_not_at_all(run):
    with pytest.raises(RuntimeError, match="full disk"), run.recording(4) as folder:
        (folder / "summary.json").write_text("{}")
        assert not run.done(4)
        raise RuntimeError("full disk")
    assert not run.done(4)
    assert run.checkpoints() == []
    assert not list(run.folder.glob(".s*"))
    record(run, 4)
    assert run.done(4)
    assert run.checkpoints() == [4]
    assert run.summary(4)["text"] == "content"


def test_an_existing_checkpoint_is_not_overwritten(run):
    record(run, 4, "first")
    record(run, 4, "second")
    assert run.summary(4)["text"] == "first"


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "unsign"])
def test_a_damaged_checkpoint_is_not_read_and_is_set_aside(run, tmp_path, damage, capsys):
    record(run, 4)
    path = run.checkpoint(4) / "summary.json"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[3] ^= 1
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[:-2])
    else:
        (path if damage == "remove" else run.checkpoint(4) / CHECKSUMS_FILE).unlink()
    with pytest.raises(LedgerError, match="it is not read; the command that made it, run again, sets it aside"):
        run.summary(4)
    assert run.checkpoint(4).exists()
    record(run, 16)
    for epochs in (4, 16):
        run.set_aside_if_damaged(epochs)
    assert run.checkpoints() == [16]
    assert not run.checkpoint(4).exists()
    assert len(list((tmp_path / ".aside").glob(f"*/{run.name}/checkpoints/4"))) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    record(run, 4)
    assert run.summary(4)["epochs"] == 4


def test_a_checkpoint_of_another_run_is_not_read(run, tmp_path):
    other = Ledger(tmp_path).run({"pe": {"name": "none"}, "seed": 0})
    record(other, 4)
    record(run, 1)
    shutil.copytree(other.checkpoint(4), run.checkpoint(4))
    shutil.copytree(run.checkpoint(1), run.checkpoint(16))
    for epochs in (4, 16):
        with pytest.raises(LedgerError, match="must be a checkpoint of this run, got another"):
            run.verify(epochs)


def test_checksums_that_lead_out_of_the_checkpoint_are_not_followed(run, tmp_path):
    record(run, 4)
    (tmp_path / "secret").write_text("secret")
    checksums = json.loads((run.checkpoint(4) / CHECKSUMS_FILE).read_text())
    (run.checkpoint(4) / CHECKSUMS_FILE).write_text(
        json.dumps(checksums | {"../../../secret": file_digest(tmp_path / "secret")})
    )
    with pytest.raises(LedgerError, match=r"must have its checksums.json"):
        run.verify(4)


def _request(folder, epochs, made, end):
    Ledger(folder.parent).run(json.loads((folder / "run.json").read_text())).request(epochs)
    made.put(True)
    end.get()
    os.kill(os.getpid(), 9)


def test_a_request_counts_while_its_process_lives(run):
    run.request(16)
    run.request(4)
    run.request(1)
    record(run, 1)
    assert run.requested() == [4, 16]
    context = multiprocessing.get_context("spawn")
    made, end = context.Queue(), context.Queue()
    other = context.Process(target=_request, args=(run.folder, 1000, made, end))
    other.start()
    assert made.get(timeout=60)
    assert run.requested() == [4, 16, 1000]
    end.put(None)
    other.join()
    (run.folder / "requested" / "8.nobody").write_text("{}")
    assert run.requested() == [4, 16]
    run.withdraw(4)
    assert run.requested() == [16]
    assert len(list(run.folder.glob("requested/*"))) == 2


def test_a_failure_ends_a_request_until_the_next_request(run):
    run.request(4)
    run.fail(4, "the loss must be finite", 7)
    assert run.requested() == []
    assert run.failure(4)["step"] == 7
    run.request(4)
    assert run.requested() == [4]
    assert run.failure(4) is None


def keep(run, step, text, finished):
    path = run.states.temporary_file()
    save_file({}, path, metadata={"pe_lab": json.dumps({"run": run.name, "step": step, "text": text})})
    run.states.keep(path, step, finished)


def text_of(state):
    return json.loads(read_metadata(state)["pe_lab"])["text"]


@pytest.mark.parametrize("saved_at_the_end", [False, True])
def test_a_state_before_an_earlier_checkpoint_is_kept_until_that_is_recorded(run, saved_at_the_end):
    keep(run, 30, "thirty", finished=True)
    keep(run, 10, "ten", finished=False)
    keep(run, 20, "twenty", finished=False)
    assert [step for step, _ in run.states.files()] == [20, 30]
    assert run.states.newest()[0] == 30
    assert run.states.newest(at_most=25)[0] == 20
    assert run.states.newest(at_most=15) is None
    if saved_at_the_end:
        keep(run, 25, "twenty-five", finished=False)
    keep(run, 25, "twenty-five", finished=True)
    assert [step for step, _ in run.states.files()] == [30]


def test_only_the_newest_state_is_kept_and_a_damaged_one_is_set_aside(run, tmp_path, capsys):
    for step, text in ((10, "ten"), (30, "thirty"), (20, "twenty")):
        keep(run, step, text, finished=True)
    assert [text_of(path) for path in run.folder.glob("*state*")] == ["thirty"]
    step, newest = run.states.newest()
    assert step == 30
    newest.write_text("thirtY")
    (run.folder / "state-40-of-nobody.safetensors").write_text("no such name")
    assert run.states.newest() is None
    assert [path.read_text() for path in (tmp_path / ".aside").rglob("state-*")] == ["thirtY"]
    assert "must have the digest" in capsys.readouterr().err


def _own(folder, ready, release):
    with Ledger(folder.parent).run(json.loads((folder / "run.json").read_text())).lease() as mine:
        ready.put(mine)
        release.get()
        os.kill(os.getpid(), 9)


def test_a_lease_has_one_owner_and_ends_with_its_process(run):
    context = multiprocessing.get_context("spawn")
    ready, release = context.Queue(), context.Queue()
    owner = context.Process(target=_own, args=(run.folder, ready, release))
    owner.start()
    assert ready.get(timeout=60)
    with run.lease() as mine:
        assert not mine
    unfinished = run.folder / ".stop-4.half"
    unfinished.mkdir()
    release.put(None)
    owner.join()
    assert owner.exitcode == -9
    with run.lease() as mine:
        assert mine
        assert not unfinished.exists()


def test_costs_add_up(run):
    run.account({"total": 10.0, "steps": 8.0, "evaluation": 1.0, "checkpoints": 2})
    run.account({"total": 5.0, "steps": 4.0, "evaluation": 0.5, "checkpoints": 1})
    assert run.cost() == {"total": 15.0, "steps": 12.0, "evaluation": 1.5, "checkpoints": 3}


@pytest.mark.parametrize("name", [".processes", ".aside", "floors", "commands", "studies"])
def test_a_ledger_that_writes_through_a_link_is_refused(tmp_path, name):
    (tmp_path / "outside").mkdir()
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(LedgerError, match=rf"{name} must be a folder of the ledger, got a link"):
        Ledger(tmp_path / "ledger").prepare()


@pytest.mark.parametrize("name", ["requested", "checkpoints", "records", "failed"])
def test_a_run_that_writes_through_a_link_is_refused(run, tmp_path, name):
    (run.folder / name).symlink_to(tmp_path)
    with pytest.raises(LedgerError, match=rf"{name} must be a folder of the ledger, got a link"):
        Ledger(tmp_path).run({"pe": {"name": "rope", "theta": 10000}, "seed": 0})


def test_a_users_copy_beside_a_checkpoint_is_not_a_checkpoint(run):
    record(run, 4)
    for name in ("4.bak", "04", "four"):
        shutil.copytree(run.checkpoint(4), run.folder / "checkpoints" / name)
    assert run.checkpoints() == [4]


@pytest.mark.parametrize("content", ["", "{", "\xff", "[1]"])
def test_a_run_goes_on_with_damaged_costs_owners_and_failures(run, tmp_path, content):
    run.account({"total": 1.0, "steps": 1.0, "evaluation": 0.0, "checkpoints": 1})
    run.heartbeat(1.0, 4)
    run.request(4)
    run.fail(4, "reason", 1)
    for name in ("cost.json", "owner.json", "failed/4.json"):
        (run.folder / name).write_bytes(content.encode("latin-1"))
    assert not isinstance(run.owner(), dict)
    assert "failed/4.json" in run.failure(4)["reason"]
    assert run.requested() == []
    run.request(4)
    assert run.requested() == [4]
    run.account({"total": 2.0, "steps": 1.0, "evaluation": 0.0, "checkpoints": 1})
    assert run.cost()["total"] == 2.0
    assert len(list((tmp_path / ".aside").rglob("cost.json"))) == 1


def test_a_folder_whose_locks_do_not_exclude_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_module, "try_lock", lambda *_: nullcontext(True))
    with pytest.raises(ValueError, match=r"ledger must be on a file system whose locks \(flock\) exclude"):
        Ledger(tmp_path).prepare()


def test_a_folder_without_locks_is_refused(tmp_path, monkeypatch):
    def missing(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(ValueError, match=r"ledger must be on a file system whose locks"):
        Ledger(tmp_path).prepare()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="ledger must be a folder that can be written to"):
        Ledger(tmp_path / "file" / "ledger").prepare()


def test_the_checksums_cover_every_file(run):
    with run.recording(1) as folder:
        for name in ("a", "b", "c"):
            (folder / name).write_text(name)
    assert set(json.loads((run.checkpoint(1) / CHECKSUMS_FILE).read_text())) == {"a", "b", "c"}
