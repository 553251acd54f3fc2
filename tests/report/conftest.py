"""Fixtures of all tests of reports."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine

from helpers.reports import made_cells, made_curves, made_records, store
from pe_lab.report import page as page_module
from pe_lab.results import panels


@pytest.fixture
def unplaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the layout of figures, where nobody looks."""

    def without_layout(**options: Any) -> Figure:
        layout = PlaceHolderLayoutEngine(adjust_compatible=True, colorbar_gridspec=True)
        return Figure(**options | {"layout": layout})

    monkeypatch.setattr(panels, "Figure", without_layout)


@pytest.fixture
def cells() -> pd.DataFrame:
    return made_cells()


@pytest.fixture
def study(tmp_path, cells) -> Path:
    return store(tmp_path / "question", cells, curves=made_curves(cells), records=made_records(cells))


@pytest.fixture
def without_figures(monkeypatch) -> None:
    """Draw no figure into the page, which takes a second and a half: for tests of what stands in words and tables."""
    monkeypatch.setattr(page_module, "inline_svg", lambda figure, caption: Markup())
