"""The file format of results that come with the package."""

import gzip
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pe_lab.results import shipped
from pe_lab.results.shipped import Shipped
from pe_lab.system.files import LedgerError, digest


def cell(seed: int = 0, epochs: int = 2, **changes: object) -> Shipped:
    identity = {"pe": {"name": "rope"}, "data": {"name": "copy"}, "model": {"depth": 1}, "seed": seed}
    summary = {"run": digest(identity), "epochs": epochs, "steps": 6, "test": {"loss": 0.1 + seed / 3}}
    found = Shipped(identity, epochs, summary, {"torch": "2.13.0"}, {"loss": 1 / 3}, "f" * 64)
    return replace(found, **changes)  # type: ignore[arg-type]


def test_cells_are_read_as_they_were_written(tmp_path: Path) -> None:
    record = {"request": {"kind": "length", "length": 2.0}, "rows": [{"tokens": 4, "metric": "loss", "value": 1 / 7}]}
    cells = [cell(seed, epochs, records=[record]) for seed in (1, 0) for epochs in (2, 1)]
    shipped.write("mine", cells, tmp_path)
    found = shipped.read("mine", tmp_path)
    assert [one.key for one in found] == sorted(one.key for one in cells)
    by_key = {one.key: one for one in cells}
    for one in found:
        given = by_key[one.key]
        assert (one.summary, one.validation, one.weights) == (given.summary, given.validation, given.weights)
        assert one.record({"length": 2, "kind": "length"}) == record["rows"]
        assert one.record({"length": 3, "kind": "length"}) is None
    assert shipped.studies(tmp_path) == ["mine"]
    assert set(shipped.index(tmp_path)) == set(by_key)


def test_equal_cells_give_equal_bytes(tmp_path: Path) -> None:
    cells = [cell(seed) for seed in range(3)]
    first = shipped.write("mine", cells, tmp_path / "a").read_bytes()
    assert shipped.write("mine", reversed(cells), tmp_path / "b").read_bytes() == first


@pytest.mark.parametrize("what", ["content", "sums", "no sums"])
def test_changed_files_are_refused(tmp_path: Path, what: str) -> None:
    path = shipped.write("mine", [cell()], tmp_path)
    sums = tmp_path / shipped.SUMS
    if what == "content":
        better = gzip.decompress(path.read_bytes()).replace(b'"loss":0.1', b'"loss":0.0')
        path.write_bytes(gzip.compress(better, mtime=0))
    elif what == "sums":
        sums.write_text(sums.read_text().replace(sums.read_text()[0], "g"))
    else:
        sums.unlink()
    with pytest.raises(LedgerError, match=r"\Ashipped results .* must "):
        shipped.read("mine", tmp_path)


def test_a_second_study_keeps_the_digest_of_the_first(tmp_path: Path) -> None:
    shipped.write("first", [cell(0)], tmp_path)
    shipped.write("second", [cell(1)], tmp_path)
    assert [one.key for one in shipped.read("first", tmp_path)] == [cell(0).key]
    assert len(shipped.index(tmp_path)) == 2


def test_a_summary_of_another_cell_is_refused(tmp_path: Path) -> None:
    shipped.write("mine", [cell(summary=cell(1).summary)], tmp_path)
    with pytest.raises(LedgerError, match="got one of another cell"):
        shipped.read("mine", tmp_path)


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"identity": {}}', b"\xff", b'{"loss": NaN}'])
def test_lines_in_another_form_are_refused(tmp_path: Path, line: bytes) -> None:
    path = shipped.write("mine", [cell()], tmp_path)
    before = shipped._sha256(path.read_bytes())
    path.write_bytes(gzip.compress(line, mtime=0))
    sums = tmp_path / shipped.SUMS
    sums.write_text(sums.read_text().replace(before, shipped._sha256(path.read_bytes())))
    with pytest.raises(LedgerError, match=re.escape(f"shipped results {path} cannot be read: ")):
        shipped.read("mine", tmp_path)


def test_what_the_package_ships_can_be_read() -> None:
    for study in shipped.studies():
        assert shipped.read(study)
