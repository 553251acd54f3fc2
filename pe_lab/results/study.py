"""The tables of a study: as text for the terminal, and as the files of its folder."""

import pandas as pd

from pe_lab.config import LR
from pe_lab.results import measurement_tables, swept_rates
from pe_lab.results.columns import (
    CURVE_METRICS,
    GENERATED_METRIC,
    LENGTH_KINDS,
    RECORD_COLUMNS,
    STRIDED_PREFIX,
    in_words,
    probes_as_trained,
    setting_columns,
)
from pe_lab.results.frame import Results
from pe_lab.results.study_comparisons import families
from pe_lab.results.summary_table import (
    as_markdown,
    as_text,
    markdown_table,
    render_table,
    score_table,
    summarise,
    with_verdicts,
)

MAX_LINES = 12  # of a table in a short summary


def study_tables(results: Results, records: pd.DataFrame) -> tuple[dict[str, str], dict[str, str]]:
    """Return text and files of all tables that the results have data for.

    Args:
        results: results with at least one cell.
        records: later measurements, from `measurement_tables.gather_records`; may be empty.

    Returns:
        Texts by the name of the table: table, tasks, rates, lengths, layers. Contents by the name of the file; the CSV
        files have all columns, also those in which all rows are equal. Differences are those from the declared
        baseline, or the first encoding, and verdicts are those of the report: of the family of comparisons with the
        declared baseline, or of all pairs, with the declared margin. A study that adds seeds where they decide has no
        verdicts here: they are for a fixed number of seeds.

    Raises:
        ValueError: the declaration is damaged.
    """
    cells, declared = results.cells, results.declared
    baseline = declared.baseline if declared.baseline in set(cells["pe"]) else None
    table, settings = summarise(cells, baseline), setting_columns(cells)
    table, lacking = _add_verdicts(table, results, records)
    texts, files = {"table": f"{render_table(table)}{lacking}"}, {"table.md": markdown_table(table)}
    frames = {"rows": cells, "table": table, "curves": results.curves, "failed": results.failed}
    wide: dict[str, tuple[pd.DataFrame, list[str], str]] = {}  # table, its setting columns, a line below it
    if cells["data"].nunique() > 1:
        wide["tasks"] = score_table(table), [name for name in settings if name != "data"], ""
    if LR in settings and len(results.curves):
        frames["rates"] = swept_rates.choose_rates(results).rates
        wide["rates"] = (
            frames["rates"],
            [name for name in settings if name != LR],
            swept_rates.edges_line(frames["rates"]),
        )
    if len(records):
        frames["records"] = records
        names = [name for name in records if name not in ("pe", "seed", *RECORD_COLUMNS)]
        wide["lengths"] = measurement_tables.length_table(records), [*names, "policy", "offset"], ""
        wide["layers"] = measurement_tables.layers(records), [*names, "length"], ""
    for name, (frame, names, line) in wide.items():
        if len(frame):
            texts[name] = "\n".join(filter(None, (as_text(frame, names), line)))
            files[f"{name}.md"] = "\n\n".join(filter(None, (as_markdown(frame, names=names), line)))
    files = {name: f"{text}\n" for name, text in files.items()}
    files |= {f"{name}.txt": f"{text}\n" for name, text in texts.items()}
    return texts, files | {f"{name}.csv": frame.to_csv(index=False) for name, frame in frames.items()}


def summary_text(records: pd.DataFrame) -> str:
    """Return one metric of each measurement as text: a line per encoding and setting.

    Args:
        records: later measurements, from `measurement_tables.gather_records`; not empty.

    Returns:
        For lengths, the loss, or what was asked for beside it: the loss of a sliding window, exact match of written
        answers; for each probe, its first metric. Long tables end after MAX_LINES lines, with the number of the others.
    """
    names = [name for name in records if name not in ("pe", "seed", *RECORD_COLUMNS)]
    parts = []
    measured = set(records.loc[records["kind"].isin(LENGTH_KINDS), "metric"])
    strided = sorted(name for name in measured if name.startswith(STRIDED_PREFIX))
    if metric := next((name for name in (*strided, GENERATED_METRIC, *CURVE_METRICS) if name in measured), None):
        table = measurement_tables.length_table(records[records["metric"] == metric])
        parts.append(_first_lines(table, [*names, "policy", "offset", "metric", "seeds"]))
    probes = records[records["kind"].eq("probe") & records["layer"].notna()]
    for _, rows in probes.groupby("probe", sort=False):
        table = measurement_tables.layers(rows[rows["metric"] == rows["metric"].iloc[0]])
        table["metric"] = table["metric"].map(in_words)  # with its unit
        parts.append(_first_lines(table, [*names, "probe", "length", "metric", "seeds"]))
    return "\n\n".join(parts)


def _first_lines(table: pd.DataFrame, names: list[str]) -> str:
    """Return the first lines of a table as text, and how many more there are."""
    more = f"\n... {len(table) - MAX_LINES} more lines" if len(table) > MAX_LINES else ""
    return f"{as_text(table.head(MAX_LINES), names)}{more}"


def study_figures(records: pd.DataFrame) -> dict[str, str]:
    """Return figures of later measurements, one metric of each as in `summary_text`, as SVG by the name of the file."""
    from pe_lab.results import plots  # loads matplotlib
    from pe_lab.system.drawing import svg

    drawings = {}
    measured = set(records.loc[records["kind"] == "length", "metric"])
    if metric := next((name for name in CURVE_METRICS if name in measured), None):
        drawings["lengths.svg"] = plots.length_curves(records, metric)
    probes = probes_as_trained(records)
    for probe, rows in probes[probes["layer"].notna()].groupby("probe", sort=False):
        drawings[f"layers-{probe}.svg"] = plots.layer_curves(probes, str(probe), rows["metric"].iloc[0])
    return {name: svg(plot.figure, name) for name, plot in drawings.items()}


def _add_verdicts(table: pd.DataFrame, results: Results, records: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the table of `summarise` with verdicts, or without them and a line that says why."""
    declared = results.declared
    if declared.decide is not None:
        return table, ""
    try:
        baseline = table.attrs["baseline"]
        compared = families(
            results.cells, records, baseline, margin=declared.margin, declared=declared.baseline == baseline
        )
        return with_verdicts(table, compared), ""
    except ValueError as error:  # the cells are trained: their means are shown all the same
        return table, f"\nno verdicts: {error}"
