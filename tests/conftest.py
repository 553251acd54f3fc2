"""What all tests share: one thread, no network, equal randomness."""

import gc
import json
import os
import pickle
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

with suppress(ModuleNotFoundError):  # a machine with a GPU may have no more than the kernels' tests need
    from hypothesis import HealthCheck, settings

    # max_examples counts what is only composed; tests that train take a part of it
    SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    settings.register_profile("suite", max_examples=35, derandomize=True, deadline=None, suppress_health_check=SLOW)
    settings.register_profile("thorough", max_examples=2400, database=None, deadline=None, suppress_health_check=SLOW)
    settings.load_profile("suite")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined: without a GPU, kernels run on CPU tensors
os.environ["OMP_NUM_THREADS"] = "1"  # of pytest-xdist's workers, before they load a library, and of programs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write the numbers of tests/golden, and show changes")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give neighbouring tests to one worker, so that what the tests of a module share is made once, not in each."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave tests and modules to the end of the process: a collection of garbage would visit millions of objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


Case = tuple[Hashable, ...]  # what a case of a test has for each of its parameters


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what is `long`, and cases of a test `covering` without which every value of a parameter occurs."""
    tests: dict[str, dict[pytest.Function, Case]] = {}
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)
        if isinstance(item, pytest.Function) and item.get_closest_marker("covering"):
            tests.setdefault(item.nodeid.partition("[")[0], {})[item] = case_of(item)
    for cases in tests.values():
        needed = covering(list(cases.values()))
        for item, case in cases.items():
            if case not in needed:
                item.add_marker(pytest.mark.slow)


def case_of(item: pytest.Function) -> Case:
    """Return a value for each parametrize of a test, and for each fixture that has parameters.

    With `covering(apart=True)`, a value for each name of a parametrize.
    """
    if (mark := item.get_closest_marker("covering")) and mark.kwargs.get("apart"):
        return (*item.callspec.params.values(),)
    rest = {name: id(value) for name, value in item.callspec.params.items()}  # values may be tensors
    given = [mark.args[0] for mark in item.iter_markers("parametrize")]
    names = [[name.strip() for name in group.split(",")] if isinstance(group, str) else group for group in given]
    return (*(tuple(map(rest.pop, group)) for group in names), *rest.values())


def covering(cases: list[Case]) -> set[Case]:
    """Return some of the cases, in which each place has all the values that it has in all of them.

    The next case is one of those with most values that were not there yet; where several have as many, the one whose
    values were there least often, so that the values of two places do not rise together.
    """
    seen: Counter[tuple[int, Hashable]] = Counter()
    chosen: set[Case] = set()
    left = {at for case in cases for at in enumerate(case)}
    while left:
        case = max(cases, key=lambda case: (len(left & {*enumerate(case)}), -sum(seen[at] for at in enumerate(case))))
        chosen.add(case)
        seen.update(enumerate(case))
        left -= {*enumerate(case)}
    return chosen


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small tensors are slower on two threads, and two are not reproducible."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _wandb_stays_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """W&B is off unless a test turns it on, and writes to a temporary folder when it is."""
    folder = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "disabled")
        for name in ("DIR", "CONFIG_DIR", "CACHE_DIR", "DATA_DIR"):
            patch.setenv(f"WANDB_{name}", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def _cache_stays_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Corpora, tokens and reference levels are kept in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _same_randomness() -> None:
    """A test draws the same numbers whichever tests ran before."""
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # without a GPU, torch.manual_seed writes down the stack for each kind of device that might come
        torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def offline_runs() -> Callable[[Path], dict[str, dict[str, list[dict]]]]:
    """Reads the offline W&B runs of a ledger back: by their id, what a run file holds, by kind of record.

    W&B's service writes a small run when that has ended, and some time after: it is ended first. A run whose service
    was killed has a file with nothing in it, and is left out.
    """
    import wandb

    from helpers.offline import contents

    def read(ledger: Path) -> dict[str, dict[str, list[dict]]]:
        wandb.teardown()  # also that of programs that tests start: they find it in the environment
        found = {}
        for path in sorted(ledger.glob("wandb/offline-run-*/*.wandb")):
            inside = contents(path)
            if "run" not in inside:
                continue
            (run,) = inside["run"]
            assert run["run_id"] not in found
            found[run["run_id"]] = inside
        return found

    return read


@pytest.fixture(scope="session")
def curves() -> Callable[[dict[str, list[dict]]], dict[str, list[tuple]]]:
    """The curves of a run that `offline_runs` found: by metric, its points over whichever axis it has."""
    axes = ("step", "epoch", "length/tokens", "probe/layer")

    def points(inside: dict[str, list[dict]]) -> dict[str, list[tuple]]:
        found: dict[str, list[tuple]] = {}
        for line in (record["item"] for record in inside["history"]):
            for name, value in line.items():
                if name[0] != "_" and name not in axes and isinstance(value, (int, float)):
                    found.setdefault(name, []).append((*map(line.get, axes), value))
        return found

    return points


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of the sweep of faults.sweeps, to which nothing happened: 12 cells on 4 runs."""
    from faults.sweeps import undisturbed

    return undisturbed(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def ledger(sound: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(sound, tmp_path / "ledger")
    return tmp_path / "ledger"


@pytest.fixture
def program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[..., tuple[int, list[str], str]]:
    """Runs one of the lab's programs with words: exit status, lines that it prints, errors."""

    def run_main(main: Callable[[], None], *words: object) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "argv", ["program", *map(str, words)])
        capsys.readouterr()
        status = 0
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    return run_main


@pytest.fixture(scope="session")
def sign() -> Callable[[Path], None]:
    """Gives a checkpoint's folder checksums that fit, as a stranger would make them."""
    from pe_lab.system.files import CHECKSUMS_FILE, file_digest

    def make(checkpoint: Path) -> None:
        names = [path.name for path in checkpoint.iterdir() if path.name != CHECKSUMS_FILE]
        (checkpoint / CHECKSUMS_FILE).write_text(json.dumps({name: file_digest(checkpoint / name) for name in names}))

    return make


class Evil:
    """What is executed by whoever unpickles it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.fixture(scope="session")
def evil() -> Callable[[Path], bytes]:
    """Makes a pickle that makes a file."""
    return lambda marker: pickle.dumps(Evil(marker))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
