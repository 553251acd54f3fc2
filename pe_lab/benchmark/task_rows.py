"""Rows of pe-bench 2: a line per encoding, task and seed, with all tries of its tuning and its results at each length.

They come with the package, a CSV file per task. A seed that is packed again must be the same, and rows of one task must
be of the same settings, those of one encoding of the same options and revision.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_lab.benchmark.tasks import NAME, BenchmarkTask
from pe_lab.data.score import NO_GAP
from pe_lab.encodings.options import POSITIVE, Range, choice_range, is_integer, is_number, show_value
from pe_lab.results.columns import ENVIRONMENT
from pe_lab.system.exact_csv import read_csv
from pe_lab.system.files import LedgerError

RESULTS_FOLDER = Path(__file__).with_name("results")  # the results that come with the package
CHECKSUM_FILE = "SHA256SUMS"  # the checksums of its files
KEY_COLUMNS = ["pe", "seed"]
METRICS = ("loss", "level", "best", "accuracy", "exact_match")  # metrics at a length, in columns such as loss_x2
CANDIDATE_FIELDS = ("lr", "scale", "pass", "quarter", "last", "steps")  # fields of a try, in columns such as try1_lr
COSTS = ("parameters", "positional_parameters", "flops_per_token")
COLUMNS = (
    *("benchmark", "task", "pe", "seed", "settings", "encoding", "revision"),
    *("y", "solved", "lr", "start_scale", "edge", "steps", "trained_steps", "core_seconds"),
)  # the first ones; then those of lengths, tries and costs
REQUIRED_COLUMNS = (*COLUMNS[:7], "solved", "edge", "trained_steps", "core_seconds", "try1_lr", "try2_lr")
# columns that may differ between machines whose results are equal
MACHINE_COLUMNS = {"core_seconds", "attention", *ENVIRONMENT}

MAX_EXACT_INTEGER = 2**53  # up to which numbers of a CSV file are whole numbers in every program
COUNT = Range(f"an integer from 1 to {MAX_EXACT_INTEGER}", lambda x: is_integer(x) and 1 <= x <= MAX_EXACT_INTEGER)
COUNT_OR_0 = Range(f"an integer from 0 to {MAX_EXACT_INTEGER}", lambda x: is_integer(x) and 0 <= x <= MAX_EXACT_INTEGER)
_NUMBER = Range("a finite number", is_number)
_NOT_NEGATIVE = Range("a finite number of at least 0", lambda x: is_number(x) and x >= 0)
_SHARE = Range("a number in [0, 1]", lambda x: is_number(x) and 0 <= x <= 1)
_TEXT = Range(
    "a text of 1 to 500 printable characters", lambda x: isinstance(x, str) and 0 < len(x) <= 500 and x.isprintable()
)
_TEXTS = (
    *("benchmark", "task", "pe", "settings", "encoding", "attention", "run"),
    *(name for name in ENVIRONMENT if name != "threads"),
)
_FLAGS = ("solved", "edge")
_DIGEST = Range("16 hexadecimal digits", lambda x: isinstance(x, str) and re.fullmatch(r"[0-9a-f]{16}", x) is not None)
_FLAG = Range("true, false or nothing", lambda x: isinstance(x, bool))
_RANGES = {
    "benchmark": choice_range(NAME),
    **dict.fromkeys(("settings", "encoding", "run"), _DIGEST),
    **dict.fromkeys(_FLAGS, _FLAG),
    **dict.fromkeys(("seed", "parameters", "positional_parameters", "trained_steps"), COUNT_OR_0),
    **dict.fromkeys(("revision", "steps", "threads"), COUNT),
    **dict.fromkeys(("lr", "scale", "start_scale"), POSITIVE),
    **dict.fromkeys(("loss", "level", "best", "core_seconds", "flops_per_token", "y", "pass"), _NOT_NEGATIVE),
    **dict.fromkeys(("accuracy", "exact_match"), _SHARE),
    **dict.fromkeys(("quarter", "last"), _NUMBER),
}


@cache
def _range_of_column(column: str) -> Range:
    """Return what values of a column may be."""
    if of_length := re.fullmatch(rf"({'|'.join(METRICS)})_x[\d.]+", column):
        column = of_length[1]
    elif of_try := re.fullmatch(rf"try\d+_({'|'.join(CANDIDATE_FIELDS)})", column):
        column = of_try[1]
    elif column in _TEXTS and column not in _RANGES:
        return _TEXT
    elif column not in _RANGES:
        return Range("nothing, as there is no such column,", lambda _: False)
    return _RANGES[column]


def _find_error(row: Mapping[str, Any], needed: Collection[str]) -> str | None:
    """Return what a row must have instead, with the column and the value; None: it is sound.

    Args:
        row: the values of a row, by column; None where there is no value.
        needed: the columns that must have a value.
    """
    for column in needed:
        if row.get(column) is None:
            return f"must have a value in {column}, got none"
    for column, value in row.items():
        if value is not None and not (allowed := _range_of_column(column)).holds(value):
            return f"must have {allowed.words} in {column}, got {show_value(value)}"
    return None


def measured_lengths(rows: pd.DataFrame) -> list[float]:
    """Return the lengths, in training lengths, at which rows have results."""
    return sorted(float(name.removeprefix("loss_x")) for name in rows if name.startswith("loss_x"))


def length_columns(factors: Iterable[float]) -> list[str]:
    """Return the columns of results at lengths."""
    return [f"{name}_x{factor:g}" for factor in factors for name in METRICS]


def count_candidates(rows: pd.DataFrame) -> int:
    """Return how many tries rows have."""
    return sum(re.fullmatch(r"try\d+_lr", name) is not None for name in rows)


def rows_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table, sorted, with numbers as they are written: eight digits, whole ones as such."""
    table = pd.DataFrame([{name: _round_value(value) for name, value in row.items()} for row in rows])
    if table.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    return table.sort_values(KEY_COLUMNS, kind="stable", ignore_index=True)


def _round_value(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return float(f"{value:.8g}") if isinstance(value, float) else value


def write_rows(task: BenchmarkTask, rows: pd.DataFrame, folder: Path | None = None) -> Path:
    """Write the rows of a task, and the digests of all files of the folder. The same rows give the same bytes.

    Raises:
        ValueError: a row is invalid.
    """
    folder = folder or RESULTS_FOLDER
    path = folder / f"{task.study}.csv"
    require_valid_rows(rows, task, "rows to be packed")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(_csv_text(rows), newline="", encoding="utf-8")
    _write_sums(folder)
    return path


def _csv_text(rows: pd.DataFrame) -> str:
    whole = [name for name in rows if _is_whole(name)]
    content: str = rows.astype(dict.fromkeys(whole, "Int64")).to_csv(index=False, lineterminator="\n")
    return content


def _is_whole(name: str) -> bool:
    return _range_of_column(name) in (COUNT, COUNT_OR_0)


def read_rows(task: BenchmarkTask, folder: Path | None = None) -> pd.DataFrame:
    """Return the rows of a task that come with the package; none, if it has none.

    Args:
        folder: the folder of shipped results; None: the package's own.

    Raises:
        LedgerError: the file was changed since it was packed.
        ValueError: a row is invalid.
    """
    path = (folder or RESULTS_FOLDER) / f"{task.study}.csv"
    if not path.is_file():
        return rows_frame([])
    content = BytesIO(_read_checked(path))
    try:
        table = read_csv(content, dtype=dict.fromkeys(_TEXTS, str), keep_default_na=False, na_values=[""])
    except ValueError as error:
        raise LedgerError(f"shipped results {path} cannot be read: {' '.join(str(error).split())}") from None
    require_valid_rows(table, task, str(path))
    return table


def _write_sums(folder: Path) -> None:
    """Write the digests of all files of a folder of shipped results."""
    files = sorted(folder.glob("*.csv"))
    (folder / CHECKSUM_FILE).write_text(
        "".join(f"{_sha256(file.read_bytes())}  {file.name}\n" for file in files), encoding="utf-8"
    )


def _read_checked(path: Path) -> bytes:
    """Return the content of a file of shipped results, after comparing it with its digest.

    Raises:
        LedgerError: there is no such file, or it was changed.
    """
    try:
        content, sums = path.read_bytes(), (path.parent / CHECKSUM_FILE).read_text(encoding="utf-8")
    except OSError as error:
        raise LedgerError(f"shipped results must be in {path}, got {error.strerror}") from None
    lines = [line.split() for line in sums.splitlines()]
    expected = {name: value for value, name in filter(lambda line: len(line) == 2, lines)}.get(path.name)
    if (actual := _sha256(content)) != expected:
        raise LedgerError(
            f"shipped results {path} must have the digest {str(expected)[:16]}, got {actual[:16]}: they were changed; "
            f"install the package again"
        )
    return content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def require_valid_rows(rows: pd.DataFrame, task: BenchmarkTask, where: str) -> None:
    """Refuse invalid rows: a value out of its range, a seed twice, a result that does not follow.

    Raises:
        ValueError: a row is invalid, or rows contradict each other.
    """
    for number, row in enumerate(rows.to_dict("records"), 1):
        plain = {str(name): _parse_value(str(name), value) for name, value in row.items()}
        wrong = _find_error(
            plain, REQUIRED_COLUMNS if task.solvable else [name for name in REQUIRED_COLUMNS if name != "solved"]
        )
        if wrong := wrong or _find_contradiction(plain, task):
            raise ValueError(f"{where} {wrong} in row {number}, {row.get('pe')}, seed {row.get('seed')}")
    if len(twice := rows[rows.duplicated(KEY_COLUMNS)]):
        pe, seed = twice.iloc[0][KEY_COLUMNS]
        raise ValueError(f"{where} must have each seed of an encoding once, got {pe}, seed {seed} twice")
    for name, part in [("settings", rows), *(("encoding", part) for _, part in rows.groupby("pe"))]:
        if part[name].nunique() > 1:
            what = task.name if name == "settings" else f"{part['pe'].iloc[0]} on {task.name}"
            digests = " and ".join(part[name].unique())
            raise ValueError(f"{where} must have one digest of {name} of {what}, got {digests}")


def _parse_value(name: str, value: Any) -> Any:
    """Return a value as it is meant: None where there is none, whole numbers as such."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if _is_whole(name) and isinstance(value, float) and value.is_integer() else value


def _find_contradiction(row: Mapping[str, Any], task: BenchmarkTask) -> str | None:
    """Return what a row must have instead, as its values contradict each other or the task; None: they do not."""
    if row["task"] != task.name:
        return f"must have {task.name} in task, got {row['task']}"
    if not task.solvable:
        same = row["y"] == row.get("loss_x1")
        return None if same and row["solved"] is None else "must have the test loss in y and nothing in solved"
    cap, first = np.log2(task.cfg.steps), np.log2(task.cfg.solve.first)
    if row["y"] is None or not first - 1e-6 <= row["y"] <= cap + 1e-6:
        return f"must have log2 steps from {first:.4g} to {cap:.4g} in y, got {row['y']}"
    if not row["solved"] and row["y"] < cap - 1e-6:
        return f"must have the cap, {cap:.6g}, in y where it is not solved, got {row['y']}"
    return None


def merge_rows(
    task: BenchmarkTask, shipped: pd.DataFrame, new: pd.DataFrame, where: str, replace: bool = False
) -> pd.DataFrame:
    """Return known and new rows of a task together: a cell with equal results once, as it was known.

    Args:
        where: the source of the new rows, for messages.
        replace: whether new rows take the place of known ones that contradict them: the same cell with other results,
            and all rows of other settings of the task, or of other options or another revision of an encoding.

    Raises:
        ValueError: known and new rows contradict each other, and `replace` is false.
    """
    require_valid_rows(new, task, where)
    if shipped.empty or new.empty:
        return new if shipped.empty else shipped
    dropped = pd.Series(False, index=shipped.index)
    settings, by_pe = new["settings"].iloc[0], new.drop_duplicates("pe").set_index("pe")
    old = (shipped["settings"] != settings) if settings not in set(shipped["settings"]) else dropped
    if old.any():
        what = f"settings {shipped['settings'].iloc[0]}", f"settings {settings}"
        dropped |= _require_replace(f"rows of {task.name}", *what, where, replace) & old
    stale = ~dropped & shipped["pe"].isin(by_pe.index) & (shipped["encoding"] != shipped["pe"].map(by_pe["encoding"]))
    for pe, part in shipped[stale].groupby("pe"):
        before, after = (f"revision {row['revision']} ({row['encoding']})" for row in (part.iloc[0], by_pe.loc[pe]))
        _require_replace(f"rows of {pe} on {task.name}", before, after, where, replace)
    dropped |= stale
    remaining_rows = shipped[~dropped].set_index(KEY_COLUMNS)
    for row in new.to_dict("records"):
        key = (row["pe"], row["seed"])
        if key in remaining_rows.index and (name := _first_difference(remaining_rows.loc[key], row)):
            what = f"{name} {remaining_rows.loc[key].get(name)}", f"{row[name]}"
            _require_replace(f"{row['pe']}, seed {row['seed']}, of {task.name}", *what, where, replace)
            remaining_rows = remaining_rows.drop(index=key)
    both = pd.concat([part for part in (remaining_rows.reset_index(), new) if len(part)], ignore_index=True)
    merged = both.drop_duplicates(KEY_COLUMNS).sort_values(KEY_COLUMNS, kind="stable", ignore_index=True)
    return merged[[*(name for name in new if name in merged), *(name for name in merged if name not in new)]]


def _require_replace(what: str, shipped: str, new: str, where: str, replace: bool) -> bool:
    if not replace:
        raise ValueError(f"{what} must be as shipped, with {shipped}, got {new} in {where}: --replace takes those")
    return True


def _first_difference(shipped: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return the first result in which two rows of a cell differ."""
    for name in new:
        value, other = (_parse_value(name, row.get(name)) for row in (shipped, new))
        if name not in MACHINE_COLUMNS and name not in KEY_COLUMNS and value != other:
            return name
    return None


def gap(rows: pd.DataFrame, length: float = 1) -> np.ndarray:
    """Return the level without position minus the best loss, at a length, 0 for rounding errors; NaN without them."""
    level, best = (_float_column(rows, f"{name}_x{length:g}") for name in ("level", "best"))
    return np.asarray(np.where(level - best <= NO_GAP, 0.0, level - best))


def score_at_length(rows: pd.DataFrame, length: float = 1) -> np.ndarray:
    """Return the share of the way from the level without position to the best loss, at a length; NaN without them."""
    level, loss = (_float_column(rows, f"{name}_x{length:g}") for name in ("level", "loss"))
    way = gap(rows, length)
    return np.asarray((level - loss) / np.where(way > 0, way, np.nan))


def _float_column(rows: pd.DataFrame, name: str) -> np.ndarray:
    return rows[name].to_numpy(float) if name in rows else np.full(len(rows), np.nan)
