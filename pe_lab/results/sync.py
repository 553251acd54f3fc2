"""Rebuild W&B runs from a ledger: python -m pe_lab.results.sync LEDGER [--study NAME] [--project pe_lab].

A W&B run per checkpoint, with the id, name, group, config, axes and metrics that it had in training: the whole curve,
floors, test, cost, other lengths, probes. Online it takes the place of the run of that id. Pictures are not redrawn.
"""

import argparse
import signal
import sys
from pathlib import Path

from pe_lab.config.ranges import require
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import Run
from pe_lab.results.stored import read_settings, read_summary
from pe_lab.system.errors import in_one_line, refuse
from pe_lab.tracking.wandb_mode import wandb_mode


def main() -> None:
    """Status 0: every stop that was asked for has its run."""
    parser = argparse.ArgumentParser(prog="python -m pe_lab.results.sync", description=__doc__.partition("\n")[0])
    parser.add_argument("ledger", metavar="LEDGER", help="the folder of the ledger")
    parser.add_argument("--study", help="only the cells of this study, and its name as their group")
    parser.add_argument("--project", default="pe_lab", help="the W&B project (pe_lab)")
    parser.error = refuse  # type: ignore[method-assign]
    try:
        given = parser.parse_args()
        require("logger.project", given.project)
        checkpoints = listed(Path(given.ledger), given.study)
        mode = wandb_mode(None)
        if mode == "disabled":
            raise ValueError("WANDB_MODE must be online or offline to rebuild runs, got 'disabled'")
        told = sync(checkpoints, given.study, given.project, mode)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        sys.exit(1)
    print(f"{told} of {len(checkpoints)} runs are in W&B, {mode}, project {given.project}")
    sys.exit(int(told < len(checkpoints)))


def listed(folder: Path, study: str | None) -> list[tuple[Run, int]]:
    """The checkpoints of a ledger, or those that a study names, whether they are there or not.

    Raises:
        ValueError: there is no such ledger or study, or nothing in it.
    """
    checkpoints = [(run, epochs) for run in Ledger(folder).runs() for epochs in run.checkpoints()]
    if not checkpoints:
        raise ValueError(f"LEDGER must be a folder with trained cells, got {str(folder)!r}")
    if study is None:
        return checkpoints
    import pandas as pd

    there = sorted(path.parent.name for path in folder.glob("studies/*/rows.csv"))
    if study not in there:
        raise ValueError(f"--study must be one of {', '.join(there) or 'none yet'} in {folder}, got {study!r}")
    path = folder / "studies" / study / "rows.csv"
    try:
        rows = pd.read_csv(path, usecols=["run", "epochs"], dtype={"run": str, "epochs": int})
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} must have the columns run and epochs: {in_one_line(error)}") from None
    return [
        (Ledger(folder).named(run), epochs) for run, epochs in zip(rows["run"], rows["epochs"].tolist(), strict=True)
    ]


def sync(checkpoints: list[tuple[Run, int]], group: str | None, project: str, mode: str) -> int:
    """Tell W&B the checkpoints; what cannot be read is told on the terminal, and the others go on.

    It ends when the server does not take a run in time.

    Args:
        group: None: the study that a cell was trained for.
        mode: "online" or "offline".

    Returns:
        How many were told.
    """
    from tqdm import tqdm

    done = 0
    for run, epochs in tqdm(checkpoints, unit="run", disable=None):
        if wandb_mode(mode) != mode:  # the server did not take a run in time
            break
        try:
            done += sync_checkpoint(run, epochs, group, project, mode)
        except Exception as error:  # whatever the entry has in it
            tqdm.write(f"skipped: {run.folder.name}, {epochs} epochs: {in_one_line(error)}", file=sys.stderr)
    return done


def sync_checkpoint(run: Run, epochs: int, group: str | None, project: str, mode: str) -> bool:
    """Tell W&B a checkpoint; returns whether it took all of it.

    No object is made of its config, which a stranger may have written, and no class of the user's own is imported: the
    length of the training sequences, all that is wanted of the dataset, is in the summary.

    Raises:
        ValueError: the checkpoint is not in the ledger, or an entry is not what was written.
    """
    from tqdm import tqdm

    from pe_lab.tracking.events import log_stored
    from pe_lab.tracking.loggers import closing, delivered, open_run

    if not run.done(epochs):
        raise ValueError(f"the ledger must have the cell, got none in {run.checkpoint(epochs)}")
    run.identity()
    run.verify(epochs)
    settings, summary = read_settings(run, epochs), read_summary(run, epochs)
    tokens = summary.get("tokens_per_sequence")
    opened = open_run(
        run=run.name,
        epochs=epochs,
        name=summary["name"],
        settings=settings,
        attention=summary["attention"],
        folder=run.folder.parent,
        group=group or settings.get("study_name"),
        project=project,
        mode=mode,
    )
    with closing(opened) as loggers:
        log_stored(loggers, run, epochs, tokens)
    lengths = any(request.get("kind") == "length" for request in Records(run, epochs).requests())
    if opened and lengths and tokens is None:
        tqdm.write(
            f"{summary['name']}: the test is left out of the curves over tokens: its summary, of an earlier version, "
            f"does not say how many tokens a training sequence has",
            file=sys.stderr,
        )
    return delivered(opened)


if __name__ == "__main__":
    main()
