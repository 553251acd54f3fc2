"""The program: python -m pe_lab.run trains one cell, python -m pe_lab.run -m a sweep of them.

Only hydra and omegaconf are imported here: a wrong config is answered before torch is.
"""

import os
import signal
import sys
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig

from pe_lab import config
from pe_lab.results.ledger import Ledger
from pe_lab.termination import TerminatedError
from pe_lab.wandb_mode import agent_run


@hydra.main(version_base="1.3", config_path=str(config.folder()), config_name="config")
def job(cfg: DictConfig) -> None:
    """One cell as a job of a sweep, in whichever process the launcher chose."""
    from pe_lab import sweep

    sweep.run_job(cfg)


def main(train: bool = True) -> None:
    """Status 0: every cell that was asked for is in the ledger, with all that was to be measured on it.

    Args:
        train: what is missing; otherwise it is an error.
    """
    full_trace = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here instead of being printed over several lines
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that wishes are taken back
    try:
        words = config.as_lists(sys.argv[1:])
        if studies := config.studies(words):
            _run_all(studies, train)
        else:
            _run(words, train)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if full_trace:
            raise
        print(f"error: {config.in_one_line(error)}", file=sys.stderr)
        if agent_run() and isinstance(error, TerminatedError):  # stopped early: an agent gives up after some status 1
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        sys.exit(1)


def _run(words: list[str], train: bool) -> None:
    """The cells that the words of a command line ask for."""
    if not {"-m", "--multirun"}.isdisjoint(words):
        words = config.of_jobs(words)
    sys.argv[1:] = sorted(words, key=lambda word: word not in ("-m", "--multirun"))  # wherever it was put
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    arguments = parser.parse_args()
    if arguments.help or arguments.hydra_help or arguments.cfg or arguments.info:
        job()
        return
    for flag in ("config_name", "config_path", "config_dir", "experimental_rerun"):
        if getattr(arguments, flag):
            _refuse(f"--{flag.replace('_', '-')} is not used here: give overrides, key=value")
    cfgs = config.expand(arguments.overrides, arguments.multirun)
    if len(cfgs) > 1 and agent_run():
        raise ValueError(f"a W&B agent must be given one cell at a time, got {len(cfgs)}: leave out -m")
    Sweeper.validate_batch_is_legal = lambda self, batch: None  # composes every job again, at 50 ms each
    if train:
        Ledger(cfgs[0].ledger).prepare()
    from pe_lab import sweep

    sweep.run(cfgs, launch=job if arguments.multirun else None, train=train)


def _run_all(studies: list[list[str]], train: bool) -> None:
    """One study after the other, once all of them are known to be good; what is missing in one keeps none from running.

    Raises:
        ValueError: a study is not good.
        CellsMissingError: cells of some are missing.
    """
    for words in studies:
        config.expand(config.of_jobs(words), multirun=True)
    from pe_lab.sweep import CellsMissingError

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


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)


if __name__ == "__main__":
    main()
