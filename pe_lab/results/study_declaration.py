"""What a study declared before its first cell was trained."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pe_lab.statistics.margins import Margin
from pe_lab.system.files import read_json

DECLARATION_FILE = "declared.json"


@dataclass(frozen=True)
class StudyDeclaration:
    """The declaration of a study; empty for a study that made none.

    Attributes:
        margin: the smallest difference that matters, by metric.
        baseline: the encoding that others are compared with, or None.
        decide: the settings by which seeds are added, or None. Tests for a fixed number of seeds do not hold for such
            a study.
        search: the settings of the search for learning rates, or None.
        tune: the settings by which every seed tunes for itself, or None. Losses of such seeds are no comparison: see
            outcomes.csv in the study's folder.
    """

    margin: Mapping[str, Margin] = field(default_factory=dict)
    baseline: str | None = None
    decide: Mapping[str, Any] | None = None
    search: Mapping[str, Any] | None = None
    tune: Mapping[str, Any] | None = None


def read_declared(folder: Path) -> StudyDeclaration:
    """Read the declaration in a study's folder.

    Raises:
        ValueError: the file is not a declaration.
    """
    path = folder / DECLARATION_FILE
    try:
        if (content := read_json(path)) is None:
            return StudyDeclaration()
        texts = (content.get("margin") or {}) if isinstance(content, dict) else None
        if not isinstance(texts, dict):
            raise ValueError(f"{json.dumps(content if texts is None else texts)}, not settings")
        margin = {metric: Margin.parse(text) for metric, text in texts.items()}
        for metric, threshold in margin.items():
            threshold.require_metric(metric)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} must be a declaration, got {' '.join(str(error).split())}") from None
    baseline, decide, search, tune = (content.get(name) for name in ("baseline", "decide", "search", "tune"))
    kinds = {"baseline": (baseline, str, "a name"), "decide": (decide, dict, "settings")}
    for name, (value, kind, words) in (
        kinds | {"search": (search, dict, "settings"), "tune": (tune, dict, "settings")}
    ).items():
        if not isinstance(value, kind | None):
            raise ValueError(f"{path} must have {words} or null as {name}, got {value!r}")
    return StudyDeclaration(margin, baseline, decide, search, tune)
