"""Train cells: python -m pe_lab.run trains one, python -m pe_lab.run -m a sweep.

Only hydra and omegaconf are imported at the top, so that a wrong config is answered before torch is loaded.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig

from pe_lab import config
from pe_lab.ledger.ledger import Ledger
from pe_lab.system.arguments import unrecognized
from pe_lab.system.devices import gpus, use_gpu_of
from pe_lab.system.errors import in_one_line, refuse
from pe_lab.system.paths import SAFE, safe_path
from pe_lab.system.termination import EndError, TerminatedError, end_with, no_exit, raising
from pe_lab.tracking.wandb_mode import agent_run

MULTIRUN = {"-m", "--multirun"}
SETTINGS = config.Config.__dataclass_fields__


def _with_hydra(task: Callable[[DictConfig], None], arguments: list[str]) -> None:
    """Let Hydra run a task, or show help, as a command line's arguments say."""
    sys.argv[1:] = arguments
    config.tell_hydra()
    hydra.main(version_base="1.3", config_path=str(config.folder()), config_name="config")(task)()


def main(train: bool = True) -> None:
    """Run the program. Exits with 0 if every requested cell is in the ledger with all its measurements.

    Args:
        train: missing cells; otherwise they are an error.
    """
    with _raising_errors() as full_trace, _ended_by_signals() as received:
        try:
            with no_exit(), config.joining(sys.argv[1:]) as given:
                arguments = config.as_lists(given)
                if studies := config.studies(arguments):
                    _run_all(studies, train)
                else:
                    _run(arguments, train)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
        except Exception as error:
            if received:  # the interrupted code raised an exception of its own
                sys.exit(128 + received[0])
            if full_trace:
                raise
            print(f"error: {in_one_line(error)}", file=sys.stderr)
            if agent_run() and isinstance(error, TerminatedError):
                # stopped early: a W&B agent gives up after several processes with status 1
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
            sys.exit(1)


@contextmanager
def _ended_by_signals() -> Iterator[list[int]]:
    """Raise an exception when SIGINT or SIGTERM is received within the block, so that requests are withdrawn.

    Yields the signals received. After the block everything is printed: a signal during shutdown ends the process at
    once.
    """
    received: list[int] = []
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background of a shell
        signal.signal(signal.SIGINT, raising(lambda: received.append(signal.SIGINT) or _interrupted()))
    signal.signal(signal.SIGTERM, raising(lambda: received.append(signal.SIGTERM) or EndError(128 + signal.SIGTERM)))
    try:
        yield received
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT):
            if callable(signal.getsignal(signum)):
                signal.signal(signum, signal.SIG_DFL)


@contextmanager
def _raising_errors() -> Iterator[bool]:
    """Let Hydra raise its errors within the block, instead of printing each over several lines.

    Yields whether the environment asks for full traces. If not, a thread that ends by an exception prints one line.
    """
    traces, before = os.environ.get("HYDRA_FULL_ERROR"), threading.excepthook
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if traces != "1":
        threading.excepthook = _thread_ended
    try:
        yield traces == "1"
    finally:
        threading.excepthook = before
        if traces is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        else:
            os.environ["HYDRA_FULL_ERROR"] = traces


def _thread_ended(by: threading.ExceptHookArgs) -> None:
    """Print that a thread ended by an exception, for lack of memory for example. The program goes on."""
    with suppress(Exception):  # no memory to print it
        name = by.thread.name if by.thread else "a thread"
        print(f"{name} ended: {in_one_line(by.exc_value or by.exc_type())}", file=sys.stderr)


def _run(words: list[str], train: bool) -> None:
    """Bring the cells that a command line's arguments ask for into the ledger."""
    given = words if MULTIRUN.isdisjoint(words) else config.of_jobs(words)
    given = sorted(given, key=lambda word: word not in MULTIRUN)  # -m may stand anywhere
    parser = get_args_parser()
    parser.error, parser.exit = refuse, _end  # type: ignore[method-assign]
    for word in given:
        if word.startswith("-") and word.lstrip("-").partition("=")[0].partition(".")[0] in SETTINGS:
            refuse(unrecognized([word], given, [], SETTINGS))  # -pe would be read as -p e
    arguments, unknown = parser.parse_known_args(given)
    if unknown:
        options = [option for action in parser._actions for option in action.option_strings]
        refuse(unrecognized(unknown, given, options, SETTINGS))
    if arguments.help or arguments.hydra_help or arguments.cfg or arguments.info:
        try:
            _with_hydra(lambda cfg: None, given)
        except SystemExit as end:
            raise EndError(end.code) from None
        return
    if arguments.config_dir:  # written as Hydra's parser reads it, and ours does not
        raise ValueError(f"--config-dir must be written --config-dir=DIR, got {arguments.config_dir!r} otherwise")
    for flag in ("config_name", "config_path", "experimental_rerun"):
        if getattr(arguments, flag):
            raise ValueError(f"--{flag.replace('_', '-')} is not used here: give overrides, key=value")
    cfgs = config.expand(arguments.overrides, arguments.multirun)
    if agent_run():
        _require_cell_of_agent(cfgs)
    launcher = config.launcher(arguments.overrides, cfgs[0]) if arguments.multirun else None
    if train:
        Ledger(cfgs[0].ledger).prepare()
    from pe_lab.experiment import sweep  # loads torch

    command = [*config.flags(), *words]
    if launcher:
        # workers elsewhere get their GPU from the scheduler
        shared = [] if launcher.elsewhere or cfgs[0].trainer.device == "cpu" else gpus()
        parent = None if launcher.elsewhere else os.getpid()
        launch = partial(_launch, launcher.words, shared, parent)
        sweep.run(cfgs, command, launch, launcher.workers, launcher.elsewhere, train)
    else:
        sweep.run(cfgs, command, train=train)


def _end(status: int = 0, message: str | None = None) -> NoReturn:
    """End the program, where argparse would."""
    if message:
        print(message, end="", file=sys.stderr)
    raise EndError(status)


def _require_cell_of_agent(cfgs: list[DictConfig]) -> None:
    """Raise ValueError unless a W&B agent asks for one cell, which depends on no result of others."""
    decide, search = cfgs[0].decide, cfgs[0].search
    alone = (
        "under a W&B agent, which chooses cells itself: start the study with python -m pe_lab.run -m, on as many "
        "machines as you like"
    )
    if decide.baseline is not None:
        raise ValueError(f"decide.baseline={decide.baseline} cannot run {alone}")
    if search is not None:
        raise ValueError(f"search must be none, got search.rates={list(search.rates)} {alone}")
    if len(cfgs) > 1:
        raise ValueError(f"a W&B agent must be given one cell at a time, got {len(cfgs)}: leave out -m")


def _launch(
    hydra_words: list[str], shared: list[str], parent: int | None, cfgs: list[DictConfig], workers: int
) -> None:
    """Start worker processes. Each serves those of the cells that no other serves.

    Args:
        shared: GPUs, given to the workers in turn.
        parent: the process that the workers end with; None: a scheduler ends them.
    """

    path, chosen = list(sys.path), SAFE in os.environ

    def work(cfg: DictConfig) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]  # of users' classes
        if not chosen:
            os.environ.pop(SAFE, None)
        if parent is not None:
            end_with(parent)
        if workers > 1:  # a single worker may be this process
            use_gpu_of(cfg.worker, shared)
        from pe_lab.experiment import scheduler

        scheduler.work(cfgs)

    with safe_path():
        _with_hydra(work, ["-m", *hydra_words, f"workers={workers}", f"+worker=range({workers})"])


def _run_all(studies: list[list[str]], train: bool) -> None:
    """Run studies one after the other, after all have been checked. Missing cells in one do not stop the next.

    Raises:
        ValueError: a setting of a study is wrong.
        CellsMissingError: cells of some studies are missing.
    """
    from pe_lab.experiment.sweep import fitting
    from pe_lab.experiment.tables import CellsMissingError

    for words in studies:
        cfgs = config.expand(config.of_jobs(words), multirun=True)
        config.launcher(words, cfgs[0])
        fitting(cfgs)

    missing = []
    for number, words in enumerate(studies, 1):
        print(f"study {number} of {len(studies)}: {' '.join(words)}", file=sys.stderr)
        try:
            _run(["-m", *words], train)
        except CellsMissingError as error:
            print(error, file=sys.stderr)
            missing.append(words[0])
    if missing:
        raise CellsMissingError(f"{len(missing)} of {len(studies)} studies are not complete: {', '.join(missing)}")


def _interrupted() -> KeyboardInterrupt:
    """Return the exception of the first Ctrl-C, which ends the program in order. The next ends it at once."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    return KeyboardInterrupt()


if __name__ == "__main__":
    main()
