"""Imports inside of the package go one way; the rules stand in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_imports_follow_the_contracts() -> None:
    ran = lint(ROOT)
    assert ran.returncode == 0, ran.stdout
    assert " 0 broken" in ran.stdout


@pytest.mark.parametrize("line", ["from pe_lab.system import files", "def f():\n    from pe_lab.system import files"])
def test_a_forbidden_import_is_found_at_the_top_and_in_a_function(tmp_path: Path, line: str) -> None:
    for file in (ROOT / "pe_lab").rglob("*.py"):
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    with (tmp_path / "pe_lab/encodings/layout.py").open("a", encoding="utf-8") as layout:
        layout.write(f"\n\n{line}\n")
    ran = lint(tmp_path)
    assert ran.returncode == 1
    assert "pe_lab.encodings.layout -> pe_lab.system" in ran.stdout


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package in a folder."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
