"""Rebuild W&B runs from a ledger: pe-lab sync LEDGER [--study NAME] [--project pe_lab].

Makes one W&B run per checkpoint, with the id, name, group, config, axes and metrics that it had in training: curves,
floors, test, cost, other lengths, probes. Online it replaces the W&B run with that id. Pictures are not redrawn.
"""

import sys
from pathlib import Path

from pe_lab.config.schema import require_setting
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.run import Run
from pe_lab.ledger.studies import read_study_cells, study_names
from pe_lab.results.stored_checkpoint import read_checkpoint_settings, read_summary
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.errors import in_one_line
from pe_lab.system.names import unknown_name_message
from pe_lab.tracking.wandb_mode import wandb_mode


def main() -> None:
    """Rebuild W&B runs. The exit status is 0 if each selected checkpoint has its W&B run."""
    parser = Parser("pe_lab.results.sync", description=__doc__)
    parser.add_argument("ledger", metavar="LEDGER", help="the folder of the ledger")
    parser.add_argument("--study", help="only the cells of this study; their W&B group has its name")
    parser.add_argument("--project", default="pe_lab", help="W&B project (default: pe_lab)")

    def program() -> int:
        arguments = parser.parse_args()
        require_setting("logger.wandb.project", arguments.project)
        checkpoints = select_checkpoints(Path(arguments.ledger), arguments.study)
        mode = wandb_mode(None)
        if mode == "disabled":
            raise ValueError("WANDB_MODE must be online or offline to rebuild W&B runs, got 'disabled'")
        logged = sync_checkpoints(checkpoints, arguments.study, arguments.project, mode)
        print(f"{logged} of {len(checkpoints)} runs are in W&B, {mode}, project {arguments.project}")
        return int(logged < len(checkpoints))

    run_program(program)


def select_checkpoints(folder: Path, study: str | None) -> list[tuple[Run, int]]:
    """Return the checkpoints of a ledger, or those in the table of a study, whether they exist or not.

    Raises:
        ValueError: there is no such ledger or study; the ledger is empty; the study's table is damaged.
    """
    ledger = Ledger(folder)
    checkpoints = [(run, epochs) for run in ledger.runs() for epochs in run.checkpoints()]
    if not checkpoints:
        raise ValueError(f"LEDGER must be a folder with trained cells, got {str(folder)!r}")
    if study is None:
        return checkpoints
    if study not in (names := study_names(folder)):
        raise ValueError(unknown_name_message("--study", names, study, f" in {folder}"))
    return [(ledger.named(run), epochs) for run, epochs in read_study_cells(folder, study)]


def sync_checkpoints(checkpoints: list[tuple[Run, int]], group: str | None, project: str, mode: str) -> int:
    """Log checkpoints to W&B and return how many were logged completely.

    Unreadable checkpoints are skipped with a line on stderr. Stops when the server does not accept a W&B run in time.

    Args:
        group: the group of all W&B runs; None: the study that a cell was trained for.
        mode: "online" or "offline".
    """
    from tqdm import tqdm

    done = 0
    for run, epochs in tqdm(checkpoints, unit="run", disable=None):
        if wandb_mode(mode) != mode:  # the server did not accept a W&B run in time
            break
        try:
            done += sync_checkpoint(run, epochs, group, project, mode)
        except Exception as error:  # a damaged entry may raise anything
            tqdm.write(f"skipped: {run.folder.name}, {epochs} epochs: {in_one_line(error)}", file=sys.stderr)
    return done


def sync_checkpoint(run: Run, epochs: int, group: str | None, project: str, mode: str) -> bool:
    """Log a checkpoint to W&B and return whether W&B received all of it.

    Its config, which anybody may have written, stays plain data, and no class in it is imported. The length of the
    training sequences is read from the summary.

    Raises:
        ValueError: the checkpoint is not in the ledger, or an entry is damaged.
    """
    from lightning.pytorch.loggers import Logger

    from pe_lab.tracking.cell_logs import log_stored
    from pe_lab.tracking.checkpoint_info import CheckpointInfo
    from pe_lab.tracking.loggers import close_at_end, is_delivered
    from pe_lab.tracking.wandb_run import open_run

    if not run.done(epochs):
        raise ValueError(f"the ledger must have the cell, got none in {run.checkpoint(epochs)}")
    run.identity()
    run.verify(epochs)
    settings, summary = read_checkpoint_settings(run, epochs), read_summary(run, epochs)
    tokens = summary["tokens_per_sequence"]
    checkpoint = CheckpointInfo(
        run=run.name,
        target=epochs,
        name=summary["name"],
        settings=settings,
        attention=summary["attention"],
        ledger=run.folder.parent,
    )
    wandb_run = open_run(checkpoint, group or settings.get("study_name"), project, mode)
    opened: list[Logger] = [wandb_run] if wandb_run else []
    with close_at_end(opened) as loggers:
        log_stored(loggers, run, epochs, tokens)
    return is_delivered(opened)


if __name__ == "__main__":
    main()
