"""The section of a report with the attention of every head, from the weights in the ledger."""

import re

import numpy as np
import pandas as pd

from pe_lab import config
from pe_lab.ledger.ledger import Ledger
from pe_lab.report.best_candidates import names_in_words
from pe_lab.report.parts import CaptionedFigure, Part, Section
from pe_lab.report.report_subject import ReportSubject
from pe_lab.results.columns import checkpoint_target, lower_is_better, setting_columns, sort_by_setting
from pe_lab.results.frame import Results, StudyFolderResults
from pe_lab.results.plots import Plot
from pe_lab.system.files import LedgerError

MAX_DRAWN_ENCODINGS = 4  # encodings that are drawn: the best and the baseline
WITH_FOLDER = "To show it, name the folder of its configuration with `--config-dir`."
MAX_HEADS = 64  # of a model that is drawn


def attention_section(subject: ReportSubject) -> Section:
    """Return the attention of the best encodings and the baseline in the last setting, first seed.

    There is none where the results have no weights: in the folder of a study, or where cells came with the package.
    """
    parts: list[Part] = []
    for row in _chosen(subject):
        name, target = str(row["run"]), checkpoint_target(row)
        try:
            plot = heads(subject.results, name, target)
        except (LedgerError, ValueError, OSError) as error:
            parts.append(f"No attention of `{row['pe']}` is shown: {' '.join(str(error).split())}")
            continue
        caption = (
            f"Attention of {row['pe']}, seed {row['seed']}, on the first test sequence; layers and heads count from 1"
        )
        parts.append(CaptionedFigure(plot, caption, f"attention.heads(results, {name!r}, {target})"))
    if missing := _not_loadable(_first_cells(subject)):
        parts.append(f"No attention of {names_in_words(missing, None)} is shown. {WITH_FOLDER}")
    return Section("Attention", parts)


def heads(results: Results, run: str, target: int) -> Plot:
    """Draw the attention of every head of a checkpoint; the numbers are means over queries. Loads torch.

    Layers and heads count from 1.

    Raises:
        ValueError: the model is too large to be drawn.
        LedgerError: the checkpoint is damaged, or has no weights.
    """
    from pe_lab.probes.figures import MAX_DRAWN_TOKENS, attention_maps, draw_maps
    from pe_lab.results.trained_cell import load_checkpoint_cell

    cell = load_checkpoint_cell(Ledger(results.source).named(run), target, foreign=False)
    model = cell.config.model
    if model.depth * model.num_heads > MAX_HEADS or cell.data.task.length > MAX_DRAWN_TOKENS:
        raise ValueError(f"at most {MAX_HEADS} heads and {MAX_DRAWN_TOKENS} tokens are drawn, {cell.name} has more")
    maps = attention_maps(cell.model, cell.data, cell.config.seed)
    lines = []
    for layer, weights_of_heads in enumerate(maps, 1):
        distance = np.abs(np.subtract.outer(*2 * [np.arange(weights_of_heads.shape[-1])]))
        for head, weights in enumerate(np.nan_to_num(weights_of_heads), 1):
            mean = float((weights * distance).sum() / weights.sum())
            largest = float(weights.max(-1).mean())
            lines.append({"layer": layer, "head": head, "distance": mean, "largest weight": largest})
    return Plot(draw_maps(maps, cell.data, title=f"Attention of {cell.name}"), pd.DataFrame(lines))


def _chosen(subject: ReportSubject) -> list[dict[str, object]]:
    """Return the cells to draw: of the last setting and the first seed, those of the best encodings and the baseline.

    The encoding with the best mean of the metric over seeds comes first.
    """
    last = _first_cells(subject)
    last = last[~last["pe"].isin(_not_loadable(last))]
    others = last.index[last["pe"] != subject.baseline][: MAX_DRAWN_ENCODINGS - 1]
    return list(last[last.index.isin(others) | (last["pe"] == subject.baseline)].to_dict("records"))


def configured_name(name: object) -> str:
    """Return the name of the file of an encoding or a task: without its options, or the encodings that it combines."""
    return re.split(r"[ \[]", str(name).strip())[0]


def _first_cells(subject: ReportSubject) -> pd.DataFrame:
    """Return the cells of the last setting and the first seed, a line per encoding, the best mean first."""
    cells = subject.results.cells
    if isinstance(subject.results, StudyFolderResults) or not subject.results.source.is_dir() or cells.empty:
        return cells.head(0)
    names = setting_columns(cells)
    ordered = sort_by_setting(cells, names)
    values = ordered[names].map(str)  # a missing value equals itself
    last = ordered[(values == values.iloc[-1]).all(axis=1)]
    means = last.groupby("pe")[f"test_{subject.metric}"].mean()
    last = last[last["seed"] == last["seed"].min()].drop_duplicates("pe")
    ascending = lower_is_better(subject.metric)
    return last.sort_values("pe", key=lambda names: names.map(means), ascending=ascending, kind="stable")


def _not_loadable(cells: pd.DataFrame) -> list[str]:
    """Return the encodings whose class or task no file names that this process knows: it imports nothing else."""
    files = config.find_folders()
    return [
        str(row["pe"])
        for row in cells.to_dict("records")
        if any(files.file(group, configured_name(row.get(group))) is None for group in ("pe", "data"))
    ]
