"""The tables of a study: as text for the terminal, and as the files of its folder."""

import pandas as pd

from pe_lab.results import curves, rates
from pe_lab.results.curves import MEASURED
from pe_lab.results.frame import Results
from pe_lab.results.table import as_markdown, as_text, by_task, markdown, place, render, summarise


def tables(results: Results, records: pd.DataFrame) -> tuple[dict[str, str], dict[str, str]]:
    """Text and files of all tables that the results have something for.

    Args:
        results: with at least one cell.
        records: what was measured on them later, as `curves.gather` has it; may be empty.

    Returns:
        Texts by the name of the table: table, tasks, rates, lengths, layers. Contents by the name of the file; the CSV
        files have all columns, also those in which all rows are equal.
    """
    cells = results.cells
    table = summarise(cells)
    texts, files = {"table": render(table)}, {"table.md": markdown(table)}
    frames = {"rows": cells, "table": table, "curves": results.curves, "failed": results.failed}
    wide: dict[str, tuple[pd.DataFrame, list[str], str]] = {}  # with its settings, and a line to stand below
    if cells["data"].nunique() > 1:
        wide["tasks"] = by_task(table), [name for name in place(cells) if name != "data"], ""
    if rates.LR in place(cells) and len(results.curves):
        frames["rates"] = rates.tuned(results).rates
        where = [name for name in place(cells) if name != rates.LR]
        wide["rates"] = frames["rates"], where, rates.edges(frames["rates"])
    if len(records):
        frames["records"] = records
        where = [name for name in records if name not in ("pe", "seed", *MEASURED)]
        wide["lengths"] = curves.lengths(records), [*where, "policy", "offset"], ""
        wide["layers"] = curves.layers(records), [*where, "length"], ""
    for name, (of, where, line) in wide.items():
        if len(of):
            texts[name] = "\n".join(filter(None, (as_text(of, where), line)))
            files[f"{name}.md"] = "\n\n".join(filter(None, (as_markdown(of, names=where), line)))
    files = {name: f"{text}\n" for name, text in files.items()}
    files |= {f"{name}.txt": f"{text}\n" for name, text in texts.items()}
    return texts, files | {f"{name}.csv": of.to_csv(index=False) for name, of in frames.items()}
