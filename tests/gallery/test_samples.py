"""What takes long to compute of a task is kept in the gallery's cache."""

from pathlib import Path

import pytest

from pe_lab.data.base import Dataset
from pe_lab.gallery import samples


def accuracies(folder: Path) -> dict[float, float]:
    """Return what a new process would, which remembers nothing."""
    samples.blind_accuracy.cache_clear()
    return samples.blind_accuracy("place", folder)


def test_accuracies_without_position_are_computed_once_and_again_where_the_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    computed = []

    def compute(dataset: Dataset, lengths: list[float]) -> dict[str, float]:
        computed.append(dataset.name)
        return {str(float(length)): 1 / (2 + length) for length in lengths}

    monkeypatch.setattr(samples, "_compute_accuracies", compute)
    expected = {1.0: 1 / 3, 2.0: 1 / 4, 4.0: 1 / 6}
    assert accuracies(tmp_path) == accuracies(tmp_path) == expected
    assert len(computed) == 1
    (path,) = tmp_path.iterdir()
    for content in ("", "[]", '{"1.0": "all"}', '{"once": 1.0}'):
        path.write_text(content)
        assert accuracies(tmp_path) == expected
        assert str(path) in capsys.readouterr().err
    assert len(computed) == 5
    samples.blind_accuracy.cache_clear()


def test_accuracies_without_position_fall_with_the_length(tmp_path: Path) -> None:
    values = list(accuracies(tmp_path).values())
    assert sorted(values, reverse=True) == values
    assert 1 / 3 < values[-1] < values[0] < 1  # of three answers, and what the floor says of them
