"""What a row of the benchmark may hold: one check of our rows, of rows that are packed, and of other people's."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any, get_type_hints

from pe_lab.benchmark.tasks import NAME, tasks
from pe_lab.config.ranges import NAME as A_NAME
from pe_lab.encodings.options import POSITIVE, Range, is_integer, is_number, one_of
from pe_lab.encodings.options import shown as in_message
from pe_lab.results.columns import ENVIRONMENT
from pe_lab.results.shipped import Shipped
from pe_lab.system.plain import is_of

LONGEST = 500  # characters of a text
LONGEST_COMMAND = 5000
LARGEST = 2**53  # up to which numbers of a CSV or JSON file are whole numbers in every program

TEXTS = ("benchmark", "task", "pe", "name", "run", "command", *(name for name in ENVIRONMENT if name != "threads"))
WHOLE = ("seed", "tokens", "parameters", "positional_parameters", "epochs", "threads")
NEEDED = ("benchmark", "task", "pe", "seed", "length", "loss", "level", "best")

_OF_A_CELL = ("name", "data", "depth", "seed", "epochs", "tokens", "loss", "parameters", "positional_parameters")
COUNT = Range(f"an integer from 1 to {LARGEST}", lambda x: is_integer(x) and 1 <= x <= LARGEST)
COUNT_OR_0 = Range(f"an integer from 0 to {LARGEST}", lambda x: is_integer(x) and 0 <= x <= LARGEST)
NUMBER = Range("a finite number", is_number)
NOT_NEGATIVE = Range("a finite number of at least 0", lambda x: is_number(x) and x >= 0)
SHARE = Range("a number in [0, 1]", lambda x: is_number(x) and 0 <= x <= 1)
_KINDS = get_type_hints(Shipped)


def text(longest: int) -> Range:
    return Range(
        f"a text of 1 to {longest} printable characters",
        lambda x: isinstance(x, str) and 0 < len(x) <= longest and x.isprintable(),
    )


_RANGES: dict[str, Range] = {
    **dict.fromkeys(TEXTS, text(LONGEST)),
    "command": text(LONGEST_COMMAND),
    "data": A_NAME,
    **dict.fromkeys(("seed", "parameters", "positional_parameters"), COUNT_OR_0),
    **dict.fromkeys(("tokens", "epochs", "threads", "depth"), COUNT),
    **dict.fromkeys(("length", "lr"), POSITIVE),
    **dict.fromkeys(("level", "best", "flops_per_token", "seconds"), NOT_NEGATIVE),
    "score": NUMBER,
}


@cache
def _range(column: str) -> Range:
    """Return what values of a column may be; a metric of a floor is <floor>/<metric>."""
    if column == "benchmark":
        return one_of(NAME)
    if column == "task":
        return one_of(*(task.name for task in tasks()))
    metric = column.rpartition("/")[2]
    if metric.startswith(("accuracy", "exact_match")):
        return SHARE
    if metric.startswith(("loss", "bits", "perplexity")):
        return NOT_NEGATIVE
    return _RANGES.get(column, NUMBER)


def complaint(
    row: Mapping[str, Any], needed: Collection[str] = NEEDED, range_of: Callable[[str], Range] = _range
) -> str | None:
    """Return what a row must have instead, with the column and the value; None: it is sound.

    Args:
        row: values by column; None where there is none.
        needed: columns that must have a value.
        range_of: what values of a column may be.
    """
    for column in needed:
        if row.get(column) is None:
            return f"must have a value in {column}, got none"
    for column, value in row.items():
        if value is not None and not (allowed := range_of(column)).holds(value):
            return f"must have {allowed.words} in {column}, got {in_message(value)}"
    return None


def complaint_of(cell: Shipped) -> str | None:
    """Return what a cell of ours must have instead, as `complaint`."""
    summary = cell.summary
    sound = all(is_of(getattr(cell, name), kind) for name, kind in _KINDS.items())
    sound = sound and is_of(summary.get("test"), dict[str, float])
    sound = sound and is_of(summary.get("floors"), dict[str, dict[str, float]])
    if not sound or not all(map(_is_record, cell.records)):
        return "must have identity, summary, environment, metrics and records of a cell, got data in another form"
    return next(filter(None, (complaint(row, needed) for row, needed in _rows(cell))), None)


def _is_record(record: dict[str, Any]) -> bool:
    """Return whether this is a measurement: a request with rows of metrics, all of as many tokens."""
    rows = record.get("rows")
    return (
        is_of(record.get("request"), dict[str, Any])
        and is_of(rows, list[dict[str, Any]])
        and bool(rows)
        and all(type(row.get("metric")) is str and type(row.get("value")) in (int, float) for row in rows)
    )


def _rows(cell: Shipped) -> Iterator[tuple[dict[str, Any], Collection[str]]]:
    """Yield the rows of a cell, with the columns that each must have: the cell itself, and each later measurement."""
    identity, summary = cell.identity, cell.summary
    pe, data, model, optimizer = (identity.get(name) for name in ("pe", "data", "model", "optimizer"))
    row = {"name": _of(pe, "name"), "data": _of(data, "name"), "depth": _of(model, "depth"), "lr": _of(optimizer, "lr")}
    row |= {"seed": identity.get("seed"), "epochs": cell.epochs, "tokens": summary.get("tokens_per_sequence")}
    row |= {cost: summary.get(cost) for cost in ("parameters", "positional_parameters", "flops_per_token", "seconds")}
    row |= {column: cell.environment.get(name) for column, name in ENVIRONMENT.items()}
    for floor, values in summary["floors"].items():
        row |= {f"{floor}/{metric}": value for metric, value in values.items()}
    yield row | summary["test"], _OF_A_CELL
    yield dict(cell.validation), ()
    for record in cell.records:
        request, metrics = record["request"], {row["metric"]: row["value"] for row in record["rows"]}
        if request.get("kind") == "length":
            tokens = record["rows"][0].get("tokens")
            yield {"length": request.get("length"), "tokens": tokens} | metrics, ("length", "tokens", "loss")


def _of(settings: Any, name: str) -> Any:
    return settings.get(name) if isinstance(settings, dict) else None
