"""The console script pe-lab: one command for each program of the package.

Each program is imported only when it is called, so that `pe-lab` itself starts at once.
"""

import importlib
import sys

from pe_lab import __version__
from pe_lab.system.escaping import escape_control
from pe_lab.system.names import unknown_name_message

COMMANDS = {
    "run": ("pe_lab.run", "train a cell, or with -m a sweep of cells"),
    "evaluate": ("pe_lab.evaluate", "measure trained cells at other lengths, policies and offsets, or probe them"),
    "status": ("pe_lab.status", "show how far the cells of a ledger are"),
    "report": ("pe_lab.report.__main__", "write a study's results as one page"),
    "replicate": ("pe_lab.replication.__main__", "repeat published numbers in their own setting, with a verdict each"),
    "audit": ("pe_lab.audit.__main__", "measure properties of encodings without training"),
    "check": ("pe_lab.check.__main__", "check an encoding or a dataset against the contract"),
    "ledger": ("pe_lab.ledger.__main__", "verify a ledger's checksums, or prune what no result needs"),
    "data": ("pe_lab.data.__main__", "export a dataset as files"),
    "sync": ("pe_lab.results.sync", "rebuild W&B runs from a ledger"),
    "benchmark": ("pe_lab.benchmark.__main__", "show what the benchmark has measured, or add a ledger to it"),
    "gallery": ("pe_lab.gallery.__main__", "write results, claims and all encodings as a static site"),
}
FIRST_STEPS = (
    "Begin with a sweep and its report:",
    "  pe-lab run -m pe=rope,alibi data=induction model.depth=2 epochs=1 optimizer.lr=3e-3 study_name=first",
    "  pe-lab report first",
    "",
    "pe-lab COMMAND --help explains a command",
)


def main() -> None:
    """Run the command that the first argument names, with the arguments after it; without any, list the commands."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
    elif name == "--version":
        print(f"pe_lab {__version__}")
    elif name in ("-sc", "--shell-completion"):  # a shell asks, as Hydra's completion tells it to
        importlib.import_module(COMMANDS["run"][0]).main()
    elif name in COMMANDS:
        sys.argv = [f"pe-lab {name}", *arguments]
        importlib.import_module(COMMANDS[name][0]).main()
    else:
        print(f"error: {escape_control(unknown_name_message('COMMAND', COMMANDS, name))}", file=sys.stderr)
        sys.exit(1)


def usage() -> str:
    """Return the list of commands, with what to begin with."""
    lines = [f"  {name:11}{text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(["usage: pe-lab COMMAND ...", "       pe-lab --version", "", *lines, "", *FIRST_STEPS])


if __name__ == "__main__":
    main()
