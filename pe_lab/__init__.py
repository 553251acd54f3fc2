"""A laboratory for positional encodings in transformers.

`pe_lab.encodings` has the encodings and `pe_lab.attention` the function attend(); both can be used in any model. The
programs are `pe-lab run`, `pe-lab report` and others: see pe_lab.cli. `pe_lab.train` trains cells as `pe-lab run -m`
does, and `pe_lab.load` returns a trained cell. `__all__` is the public interface: docs/install.md says how it may
change.
"""

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pe_lab.results.frame import Results
    from pe_lab.results.trained_cell import TrainedCell

__all__ = ["__version__", "attention", "encodings", "load", "train"]
__version__ = "0.1.0"


def train(*overrides: str) -> "Results":
    """Train the cells of a sweep, as `pe-lab run -m` does, and return them as tables.

        results = pe_lab.train("pe=rope,alibi", "data=induction", "seed=range(3)", "steps=480", "logger=none")
        results.cells  # one row per cell; .curves has the validation during training

    The cells are trained one after the other in this process, and their losses are printed. Cells that the ledger has
    are not trained again. A class of your own is given by `"pe=none", "pe.name=mine", "pe._target_=__main__.Mine"`.

    Args:
        overrides: the settings, as on the command line; commas separate values. Settings of Hydra itself are not
            used.

    Raises:
        TypeError: a setting is not text.
        ValueError: a setting is wrong; nothing has been trained.
        CellsMissingError: cells failed, a RuntimeError; the others are in the ledger.
    """
    from pe_lab.experiment import sweep  # loads torch

    return sweep.train_overrides(overrides)


def load(ledger: "str | os.PathLike[str]" = "ledger", study: str | None = None, **settings: Any) -> "TrainedCell":
    """Load a trained cell: its model, data, metrics and config.

        cell = pe_lab.load("ledger", pe="rope", depth=2, epochs=16, seed=0)

    `pe_lab.results.frame.load` returns all cells of a ledger or a study as a table.

    Args:
        ledger: the folder that `pe-lab run` wrote, or that of one study or one checkpoint in it.
        study: the study whose cells are searched; None: all cells of the ledger.
        settings: the settings of the cell, by the name or the last word of the name that they have on the command line:
            `pe`, `data`, `depth`, `epochs` or `steps`, `seed`, `lr`, `**{"optimizer.lr": 3e-3}`. As many as are needed
            to tell the cell from all others.

    Raises:
        TypeError: the ledger is not a path.
        ValueError: there is no such ledger, study or setting; no cell has these settings, or several have: the message
            names in what they differ.
        LedgerError: the checkpoint is damaged, or has no weights.
    """
    from pe_lab.results import trained_cell  # loads torch

    return trained_cell.load_cell(ledger, study, settings)


def __getattr__(name: str) -> Any:
    """Import a public package when it is asked for: both load torch."""
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, for completion: packages too that are not imported yet."""
    return sorted({*globals(), *__all__})


def _leave_current_folder() -> None:
    """Take the current folder off the path, where `python -m pe_lab` has put it; not that of the checkout.

    Otherwise a file that lies beside a ledger, as pyarrow.py, would be imported in the place of an installed package.
    Users' classes are found there all the same: see `pe_lab.config.config_folders.add_import_paths`.
    """
    if sys.argv[:1] != ["-m"] or sys.flags.safe_path:  # -m: while packages of the program are imported, only then
        return
    program = sys.orig_argv[-len(sys.argv)].rpartition("-m")[2]  # -m pe_lab.run, or -mpe_lab.run
    checkout = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    with suppress(OSError):  # the current folder was removed, and is not on the path
        if program.partition(".")[0] == __name__ and sys.path[0] == os.getcwd() != checkout:
            del sys.path[0]


_leave_current_folder()
