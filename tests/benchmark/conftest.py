"""Shipped results that nobody trained."""

from pathlib import Path

import pytest

import fabricated


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shipped results: seven encodings on three tasks."""
    return fabricated.write(tmp_path_factory.mktemp("results"))
