"""Files that are written completely or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pe_lab.system import files

ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def test_text_is_written_in_utf8_whatever_the_locale(tmp_path: Path) -> None:
    write = "write_text(Path(sys.argv[1]), chr(0x3B8))"
    program = f"import sys; from pathlib import Path; from pe_lab.system.files import write_text; {write}"
    subprocess.run([sys.executable, "-c", program, tmp_path / "theta"], env=os.environ | ASCII, check=True)
    assert (tmp_path / "theta").read_bytes() == "θ".encode()


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_text(path, "half of a pair: \ud800")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_text(encoding="utf-8") == "old"


def test_a_rename_that_fails_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_text(tmp_path / "folder", "text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]
