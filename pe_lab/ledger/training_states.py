"""Training states of a run: weights, optimizer and metric rows at a step, as safetensors files."""

import json
import math
import re
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path

from safetensors import SafetensorError, safe_open

from pe_lab.ledger.tree import LedgerFiles
from pe_lab.system.files import NOT_READ, LedgerError, file_digest, folder_entries

STATE_FILE = re.compile(r"state-([0-9]+)-([0-9a-f]{16})\.safetensors")  # steps, digest of the content


class TrainingStates:
    """The states in the folder of a run. Only the owner of its lease changes them."""

    def __init__(self, tree: LedgerFiles, folder: Path) -> None:
        self.tree = tree
        self.folder = folder

    def files(self) -> list[tuple[int, Path]]:
        """Return the steps and the path of each state, in order of steps."""
        matches = ((STATE_FILE.fullmatch(path.name), path) for path in folder_entries(self.folder, "state-*"))
        return sorted((int(match[1]), path) for match, path in matches if match)

    def newest(self, at_most: float = math.inf) -> tuple[int, Path] | None:
        """Return the steps and the path of the state with the most steps, or None; set damaged states aside.

        Args:
            at_most: the largest number of steps; states with more are ignored.
        """
        while states := [(step, path) for step, path in self.files() if step <= at_most]:
            step, path = states[-1]
            with suppress(FileNotFoundError):  # a newer state has just replaced it
                if not self.tree.set_aside_if_damaged(path, partial(verify_state, path)):
                    return step, path
        return None

    def temporary_file(self) -> Path:
        """Return a path in the folder for a state that is being written."""
        return self.tree.prepare_file(self.folder / f".state.{uuid.uuid4().hex}")

    def keep(self, temporary: Path, step: int, finished: bool) -> None:
        """Give a written state its name, and remove older ones.

        Args:
            finished: whether its checkpoint is recorded, so that the state is not needed if there is one with more
                steps.
        """
        states = self.files()
        needed = not finished or all(other <= step for other, _ in states)
        if needed and all(other != step for other, _ in states):
            self.tree.rename(temporary, self.folder / f"state-{step}-{file_digest(temporary)[:16]}.safetensors")
        else:
            self.tree.remove(temporary)
        for other, path in states:
            if other < step or (other == step and not needed):
                self.tree.remove(path)


def verify_state(path: Path) -> None:
    """Compare a state with the digest and steps in its name, and with the run whose folder it is in.

    Raises:
        FileNotFoundError: there is no such file.
        LedgerError: they differ.
    """
    step, expected = STATE_FILE.fullmatch(path.name).groups()  # type: ignore[union-attr]
    if (actual := file_digest(path)[:16]) != expected:
        raise LedgerError(f"ledger entry {path} must have the digest {expected}, got {actual}: {NOT_READ}")
    try:
        header = json.loads(read_metadata(path)["pe_lab"])  # metric rows may hold NaN
        run, steps = header["run"], header["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        run, steps = None, None
    if (run, steps) != (path.parent.name, int(step)):
        other = run if run != path.parent.name else f"{steps} steps"
        raise LedgerError(f"ledger entry {path} must be a state of its run, got one of {other}: {NOT_READ}")


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file, whose header is checked.

    Raises:
        LedgerError: it is not a safetensors file.
    """
    try:
        with safe_open(path, "np") as file:
            return file.metadata() or {}
    except SafetensorError as error:
        raise LedgerError(f"ledger entry {path} must be a safetensors file, got {error}: {NOT_READ}") from None
