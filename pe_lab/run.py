"""Train cells: pe-lab run trains one, pe-lab run -m a sweep.

The program is Hydra's: a cell is a job, and a sweep is run by `hydra/sweeper=pe_lab`, in hydra_plugins. Torch,
Lightning and pandas are not imported at the top, so that a wrong config is answered before they are loaded.

CONTRIBUTING.md, "From a command to a row", follows a command from `main` to the rows of a report.
"""

import os
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf

from pe_lab import config
from pe_lab.config.help import help_text
from pe_lab.config.trainer_arguments import devices_of
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.processes import register_process
from pe_lab.system.arguments import Parser, unrecognized_message
from pe_lab.system.errors import in_one_line, refuse
from pe_lab.system.gpus import gpu_groups, gpus, select_worker_gpu
from pe_lab.system.paths import SAFE_PATH_VARIABLE, safe_path
from pe_lab.system.raised_places import raised_in
from pe_lab.system.termination import ProgramExit, TerminatedError, end_with_process, no_exit, raising_handler
from pe_lab.tracking.wandb_agent import agent_run

COMMAND = "pe-lab"
TOP_SETTINGS = tuple(config.Config.__dataclass_fields__)
OVERWRITTEN_SETTINGS = (
    *("hydra.runtime.", "hydra.overrides.", "hydra.job.override_dirname.", "hydra.job.config_name."),
    "hydra.job.env_copy.",  # for a launcher that starts machines
)


class HydraTask:
    """What Hydra runs: a cell, or the cells of a sweep for `hydra/sweeper=pe_lab`.

    Args:
        command_line: the command line, shown by pe_lab.status.
        train: whether missing cells are trained; otherwise they are an error.
    """

    def __init__(self, command_line: list[str], train: bool) -> None:
        self.command_line, self.train = command_line, train
        self.ledger: str | None = None  # once it is used

    @property
    def kept(self) -> str:
        """What is there when the program is stopped."""
        return f"{self.ledger} keeps finished cells and saved states; run the same command to continue"

    def __call__(self, cfg: DictConfig) -> float:
        """Bring a cell into the ledger, and return its validation loss."""
        job: Any = HydraConfig.get()  # a DictConfig, which Hydra calls a HydraConf
        alone = job.mode is RunMode.RUN  # otherwise another sweeper asks for it
        overrides = list(job.overrides.task)
        try:
            _require_used(job, alone)
            cfg = config.complete_cell(cfg, overrides, job.sweeper.get("params") if alone else None)
            self._prepare([cfg], job.job.chdir)
            from pe_lab.experiment import sweep

            command_line = self.command_line if alone else [*config.config_dir_flags(), *overrides]
            (served,) = sweep.run_cells([cfg], command_line, train=self.train)
            return served.validation_loss
        except Exception as error:
            if alone:
                sys.stderr = _WithoutOverrides(sys.stderr)
            else:
                print(f"{' '.join(overrides)}: {in_one_line(error)}", file=sys.stderr)  # Hydra raises only the first
            raise

    def sweep(
        self,
        settings: DictConfig,
        params: dict[str, Any],
        overrides: list[str],
        launch: Callable[[TaskFunction, list[str], int], None],
    ) -> None:
        """Bring the cells of a sweep into the ledger.

        Args:
            settings: the settings of Hydra itself.
            params: the overrides of the study's sweep, by setting.
            overrides: the overrides of the command line.
            launch: a function that starts jobs and waits for them, given their task, the overrides of their config and
                their number.
        """
        _require_used(settings, alone=False)
        cfgs = config.compose_cells(params, overrides)
        launcher = config.describe_launcher(settings.runtime.choices["hydra/launcher"], cfgs[0], settings.launcher)
        self._prepare(cfgs, settings.job.chdir)
        from pe_lab.experiment import sweep

        devices = max(devices_of(cfg.trainer) for cfg in cfgs)
        shared = [] if launcher.gives_gpus or cfgs[0].trainer.device == "cpu" else gpu_groups(gpus(), devices)
        parent = None if launcher.remote else os.getpid()  # those elsewhere are ended by a scheduler
        fixed = config.single_valued_overrides(overrides, multirun=True)

        def start(served: list[DictConfig], workers: int) -> None:
            # a single worker may be this process
            sweep_name = register_process(Path(served[0].ledger)) if launcher.remote else None
            gpus_of_workers = shared if workers > 1 else []
            work = Worker(served, gpus_of_workers, parent, list(sys.path), SAFE_PATH_VARIABLE in os.environ, sweep_name)
            with safe_path():
                launch(work, fixed, workers)

        sweep.run_cells(cfgs, self.command_line, start, launcher.workers, launcher.remote, self.train)

    def _prepare(self, cfgs: list[DictConfig], chdir: bool | None) -> None:
        """Check what a W&B agent asks for, and the ledger; then say that the program has begun.

        Args:
            chdir: whether jobs have other current folders than the program.
        """
        if agent_run():
            _require_cell_of_agent(cfgs)
        for cfg in cfgs if chdir else []:
            cfg.ledger = hydra.utils.to_absolute_path(cfg.ledger)
        if self.train:
            Ledger(cfgs[0].ledger).prepare()
            self.ledger = cfgs[0].ledger
        if "torch" not in sys.modules:  # its import takes seconds
            count = f"{len(cfgs)} cells" if len(cfgs) > 1 else f"{cfgs[0].pe.name} on {cfgs[0].data.name}"
            print(f"{count}: loading PyTorch", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Worker:
    """A job of a sweep: it serves those of the cells that no other process serves.

    Attributes:
        cfgs: the cells.
        shared: the GPUs, given to the workers in turn.
        parent: the id of the process that the worker ends with; None: a scheduler ends the worker.
        path: the import path of the program, on which modules of users' classes are.
        safe: whether the environment asks for a safe path, as it does while workers are started.
        sweep: the name in the ledger of the process that waits for the worker; None: that process waits for the
            launcher.
    """

    cfgs: list[DictConfig]
    shared: list[str]
    parent: int | None
    path: list[str]
    safe: bool
    sweep: str | None = None

    def __call__(self, cfg: DictConfig) -> None:
        """Serve cells; the config is the same for all workers."""
        sys.path += [folder for folder in self.path if folder not in sys.path]
        if not self.safe:
            os.environ.pop(SAFE_PATH_VARIABLE, None)
        if self.parent is not None:
            end_with_process(self.parent)
        select_worker_gpu(HydraConfig.get().job.num, self.shared)
        from pe_lab.experiment import scheduler

        scheduler.complete_cells(self.cfgs, self.sweep)


class _WithoutOverrides:
    """Standard error without Hydra's line about a failed job: the program prints one of its own."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return len(text) if text.startswith("Error executing job with overrides: ") else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _with_hydra(task: TaskFunction, arguments: list[str]) -> None:
    """Let Hydra run a task, or show what the arguments ask for."""
    sys.argv[1:] = arguments
    config.register_search_path()
    with redirect_stderr(sys.stderr):  # restored at the end
        hydra.main(version_base="1.3", config_path=str(config.config_folder()), config_name="config")(task)()


def main(train: bool = True) -> None:
    """Run the program. Exits with 0 if every requested cell is in the ledger with all its measurements.

    Args:
        train: whether missing cells are trained; otherwise they are an error.
    """
    with _raising_errors() as full_trace, _ended_by_signals() as received:
        try:
            if "TORCHELASTIC_RUN_ID" in os.environ:
                raise ValueError("torchrun must be left to the program, which starts it for trainer.devices=2 or more")
            with no_exit(), config.add_config_dirs(sys.argv[1:]) as remaining:
                arguments = config.as_lists(config.expand_checkpoint_override(remaining))
                if studies := config.study_overrides(arguments):
                    _run_all(studies, train)
                else:
                    _run(arguments, train)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
        except BrokenPipeError:  # as of `| head`
            sys.exit(1)
        except Exception as error:
            if received:  # the interrupted code raised an exception of its own
                sys.exit(128 + received[0])
            if full_trace:
                raise
            trace = "" if raised_in(error) is None else " (HYDRA_FULL_ERROR=1 shows the traceback)"
            print(f"error: {in_one_line(error)}{trace}", file=sys.stderr)
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

    def error(signum: int, raised: BaseException) -> BaseException:
        received.append(signum)
        return raised

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background of a shell
        signal.signal(signal.SIGINT, raising_handler(lambda: error(signal.SIGINT, _interruption())))
    signal.signal(signal.SIGTERM, raising_handler(lambda: error(signal.SIGTERM, ProgramExit(128 + signal.SIGTERM))))
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


def _run(command_line: list[str], train: bool) -> None:
    """Bring the cells that a command line's arguments ask for into the ledger, or show what they ask Hydra for."""
    for argument in command_line:
        if argument.startswith("-") and argument.lstrip("-").partition("=")[0].partition(".")[0] in TOP_SETTINGS:
            refuse(unrecognized_message([argument], command_line, [], TOP_SETTINGS))  # -pe would be read as -p e
    arguments = _parser().parse_intermixed_args(command_line)
    _require_flags(arguments)
    overrides, completes = arguments.overrides, arguments.shell_completion
    shows = completes or arguments.info or arguments.hydra_help or arguments.version  # nothing of a config
    flags = [argument for argument in command_line if argument not in overrides]
    multirun = arguments.multirun or "hydra.mode=MULTIRUN" in overrides
    if arguments.help:
        conf, shown = config.find_folders(), [argument for argument in overrides if argument != "all"]
        config.single_valued_overrides([word for word in shown if "=" in word], multirun)
        print(help_text(conf, shown, every=shown != overrides, train=train))
        return
    if not shows:
        config.single_valued_overrides(overrides, multirun)
        config.add_path_of_callbacks(overrides)
    if completes:
        _prepare_completion()
    jobs = multirun and not arguments.cfg
    task, elements = (
        HydraTask([*config.config_dir_flags(), *command_line], train),
        config.sweep_overrides(overrides) if jobs else overrides,
    )
    try:
        _with_hydra(task, [*elements, *flags])  # a flag whose value may be left out, as --info, would take an override
    except (KeyboardInterrupt, ProgramExit):
        if task.ledger:
            print(f"stopped: {task.kept}", file=sys.stderr)
        raise
    except TerminatedError as error:
        raise TerminatedError(f"{error}: {task.kept}") from None
    except SystemExit as end:
        if shows or arguments.cfg:
            raise ProgramExit(end.code) from None
        raise


def _require_flags(arguments: Namespace) -> None:
    """Raise ValueError if flags are given that are not used, or not without another."""
    for flag in ("config_dir", "config_name", "config_path", "experimental_rerun"):
        if value := getattr(arguments, flag):
            option = f"--{flag.replace('_', '-')}"
            if flag == "config_dir":  # written as Hydra's parser reads it, and ours does not
                raise ValueError(f"{option} must be written {option}=DIR, got {value!r} otherwise")
            raise ValueError(f"{option} is not used here: give overrides, key=value")
    if arguments.package and not arguments.cfg:
        raise ValueError(f"--package needs --cfg, as --cfg job --package {arguments.package}: got no --cfg")


def _prepare_completion() -> None:
    """Let Hydra complete the words behind `pe-lab run`: it names the program by its first word."""
    sys.argv[0] = COMMAND
    line = os.environ.get("COMP_LINE", "").split(" ")
    os.environ["COMP_LINE"] = " ".join(line[:1] + line[2:] if line[1:2] in (["run"], ["evaluate"]) else line)


def _parser() -> Parser:
    """Return a parser of Hydra's options, as its manual lists them, with errors in one line."""
    parser = Parser(settings=TOP_SETTINGS, add_help=False)
    parser.add_argument("overrides", nargs="*")
    for flags in ("-h --help", "--hydra-help", "--version", "--resolve", "-r --run", "-m --multirun"):
        parser.add_argument(*flags.split(), action="store_true")
    for flags in ("-p --package", "-cp --config-path", "-cn --config-name", "-cd --config-dir", "--experimental-rerun"):
        parser.add_argument(*flags.split())
    parser.add_argument("-sc", "--shell-completion", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job", "hydra", "all"])
    choices = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    parser.add_argument("-i", "--info", nargs="?", const="all", choices=choices)
    return parser


def _require_used(settings: DictConfig, alone: bool) -> None:
    """Raise ValueError if settings of Hydra are given that nothing reads.

    Args:
        settings: the settings of Hydra itself.
        alone: whether a single cell is trained, and not one of a sweep.
    """
    for group in ("launcher", "sweeper"):
        if not isinstance(settings[group], DictConfig):
            raise ValueError(f"hydra.{group} must be a group of settings, got {settings[group]!r}")
    overrides: Any = OmegaConf.to_container(settings.overrides.hydra)  # as they were written
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~").replace("/", ".") + "."
        if key.startswith(OVERWRITTEN_SETTINGS) or (not alone and key.startswith(("hydra.job.num.", "hydra.job.id."))):
            raise ValueError(f"{override} must be left out: it is set by Hydra, or read by nothing here")
        if alone and key.startswith(("hydra.launcher.", "hydra.sweeper.", "hydra.sweep.")):
            raise ValueError(f"{override} needs a sweep, and is not used for a single cell: add -m, or leave it out")
        if not alone and key.startswith("hydra.run."):
            raise ValueError(f"{override} is for a single cell: a sweep has hydra.sweep.dir and hydra.sweep.subdir")
    if settings.verbose and settings.runtime.choices["hydra/job_logging"] in ("none", "disabled"):
        raise ValueError(f"hydra.verbose={settings.verbose} needs hydra/job_logging=default or stdout, got none")


def _require_cell_of_agent(cfgs: list[DictConfig]) -> None:
    """Raise ValueError unless a W&B agent asks for one cell, which depends on no result of others."""
    decide = cfgs[0].decide
    alone = (
        "under a W&B agent, which chooses cells itself: start the study with pe-lab run -m, on as many "
        "machines as you like"
    )
    if decide.baseline is not None:
        raise ValueError(f"decide.baseline={decide.baseline} cannot run {alone}")
    if len(cfgs) > 1:
        raise ValueError(f"a W&B agent must be given one cell at a time, got {len(cfgs)}: leave out -m")


def _run_all(studies: list[list[str]], train: bool) -> None:
    """Run studies one after the other, after all have been checked. Missing cells in one do not stop the next.

    Raises:
        ValueError: a setting of a study is wrong.
        CellsMissingError: cells of some studies are missing.
    """
    from pe_lab.experiment import sweep, sweep_report

    for arguments in studies:
        cfgs = config.expand_overrides(config.sweep_overrides(arguments), multirun=True)
        chosen = [argument.partition("=")[2] for argument in arguments if argument.startswith("hydra/launcher=")]
        config.describe_launcher(chosen[-1] if chosen else "cores", cfgs[0])
        sweep.split_fitting(cfgs)

    missing = []
    for number, arguments in enumerate(studies, 1):
        print(f"study {number} of {len(studies)}: {' '.join(arguments)}", file=sys.stderr)
        try:
            _run(["-m", *arguments], train)
        except sweep_report.CellsMissingError as error:
            print(error, file=sys.stderr)
            missing.append(arguments[0])
    if missing:
        raise sweep_report.CellsMissingError(
            f"{len(missing)} of {len(studies)} studies are not complete: {', '.join(missing)}"
        )


def _interruption() -> KeyboardInterrupt:
    """Return the exception of the first Ctrl-C, which ends the program in order. The next ends it at once."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    return KeyboardInterrupt()


if __name__ == "__main__":
    main()
