"""A gallery of fabricated results, and of four encodings."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers import tuned
from pe_lab.benchmark import task_rows
from pe_lab.benchmark.tasks import task_named
from pe_lab.gallery import encoding_page
from pe_lab.gallery.gallery_data import STUDIES, GalleryData
from pe_lab.gallery.site import write_site

SHOWN = ("rope", "none", "alibi", "rope_2d")


@pytest.fixture(scope="session", autouse=True)
def _formulas() -> Iterator[None]:
    """Without latex2mathml, which is in the extras test and docs, formulas are shown as they are written."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("latex2mathml") is None:
            patch.setattr(encoding_page, "mathml", lambda formula: "<math><mi>formula</mi></math>")
        yield


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shipped results: two tasks that are measured, and a third with too few seeds."""
    folder = tmp_path_factory.mktemp("results")
    task_rows.write_rows(
        task_named("induction"), tuned.table("induction", tuned.MEANS, fails={"learnable": 0.5}), folder
    )
    task_rows.write_rows(task_named("causal_text"), tuned.table("causal_text", tuned.LOSSES, 0.01), folder)
    task_rows.write_rows(task_named("copy"), tuned.table("copy", tuned.MEANS, seeds=range(3)), folder)
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of portraits."""
    return tmp_path_factory.mktemp("portraits")


@pytest.fixture(scope="session")
def content(results: Path, cache: Path) -> GalleryData:
    """The content of a gallery of the fabricated results."""
    return GalleryData.gather(results, STUDIES, cache, names=SHOWN)


@pytest.fixture(scope="session")
def site(content: GalleryData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gallery as files."""
    folder = tmp_path_factory.mktemp("site")
    write_site(content, folder)
    return folder
