"""Every notebook runs from top to bottom, and is kept with what it showed."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MAX_BYTES = 1_500_000  # bytes


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "1_tour",
        "2_depth_epochs_encoding",
        "3_lengths",
        "4_add_your_own",
        "5_use_elsewhere",
    ]


@pytest.mark.filterwarnings("ignore")  # of the kernel's client
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_top_to_bottom(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    shown = [len(cell.get("outputs", [])) for cell in notebook.cells]
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    assert [len(cell.get("outputs", [])) > 0 for cell in notebook.cells] == [count > 0 for count in shown]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_small_and_computes_nothing_of_its_own(path: Path) -> None:
    assert path.stat().st_size < MAX_BYTES
    code = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    assert "pe_lab" in code
    for elsewhere in ("scipy", "statsmodels", "pyplot", "np.mean"):
        assert elsewhere not in code
