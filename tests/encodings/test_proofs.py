"""docs/proofs.md has every encoding, with small differences, and what it names is in the tests."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from helpers import mutants, proofs
from pe_lab.config import config_folder

NAMES = {path.stem for path in (config_folder() / "pe").glob("*.yaml")}
LIBRARIES = ("transformers", "x-transformers", "rotary-embedding-torch")  # float32 inside


def rows(table: re.Pattern[str]) -> list[list[str]]:
    """Return the cells of a table of the page, without its head."""
    match = table.search(proofs.PAGE.read_text())
    assert match is not None
    lines = match[0].splitlines()[3:-1]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def marked() -> set[tuple[str, str]]:
    """Return the tests that are marked, or some of whose parameters are: file and function."""
    results = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        tree = ast.parse(path.read_text())
        lists = {  # of parameters that are marked
            name.id
            for node in tree.body
            if isinstance(node, ast.Assign) and "mark.proves" in ast.unparse(node.value)
            for name in node.targets
            if isinstance(name, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                text = " ".join(map(ast.unparse, node.decorator_list))
                if "mark.proves" in text or lists & set(re.findall(r"\w+", text)):
                    results.add((path.name, node.name))
    return results


def test_every_encoding_is_proven_and_nothing_else_is() -> None:
    assert {row[0].strip("`") for row in rows(proofs.TABLE)} == NAMES


def test_tests_of_the_table_are_the_marked_ones() -> None:
    named = {tuple(test.split("::")) for row in rows(proofs.TABLE) for test in re.findall(r"`([^`]+)`", row[-1])}
    assert named == marked(), "run: python tests/helpers/proofs.py"


def test_differences_are_those_of_rounding() -> None:
    for name, by, value, of_value, gradient, of_gradient, dtypes, _ in rows(proofs.TABLE):
        exact = dtypes == "float64" and by.rpartition(" ")[0] not in LIBRARIES
        for difference, size in ((value, of_value), (gradient, of_gradient)):
            if difference:
                assert float(difference) <= (1e-11 if exact else 1e-3) * max(1.0, float(size)), (name, by)


def test_every_encoding_is_compared_in_float64_with_its_gradients() -> None:
    """In one row at least; those made of another encoding at other positions or places are compared with that."""
    full = {row[0].strip("`") for row in rows(proofs.TABLE) if row[2] and row[4] and row[6] == "float64"}
    of_another = {name for name in NAMES if name.startswith("randomized_")} | {"sinusoidal_qk"}
    assert NAMES - full == of_another


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutants_text_occurs_once_and_its_tests_exist(mutant: mutants.Mutant) -> None:
    assert (mutants.ROOT / mutant.path).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert all((mutants.ROOT / "tests" / tests).exists() for tests in mutant.tests)


def test_mutants_of_the_page_are_those_of_the_script_and_three_at_least() -> None:
    expected = [[f"`{one.encoding}`", mutants.cell(one.old), mutants.cell(one.new)] for one in mutants.MUTANTS]
    assert [[row[0], row[2], row[3]] for row in rows(mutants.TABLE)] == expected, "run: python tests/helpers/mutants.py"
    of_encodings = [one for one in mutants.MUTANTS if one.encoding in NAMES]
    assert min(Counter(one.encoding for one in of_encodings).values()) >= 3
    for row, one in zip(rows(mutants.TABLE), mutants.MUTANTS, strict=True):
        file, _, test = row[4].strip("`").partition("::")
        (place,) = {Path(tests).parent for tests in one.tests}
        assert f"def {test}(" in (mutants.ROOT / "tests" / place / file).read_text()


@pytest.mark.slow
def test_a_file_of_tests_that_cannot_be_collected_catches_no_mutant(tmp_path: Path) -> None:
    tests = tmp_path / "test_broken.py"
    tests.write_text("import of_nothing\n")
    mutant = mutants.Mutant(
        "rope", Path("pe_lab/encodings/families/rotary.py"), "class RoPE(", "class RoPE (", (str(tests),)
    )
    with pytest.raises(RuntimeError, match="pytest ended with 2"):
        mutants.caught_by(mutant, mutants.copied(tmp_path / "copy"))


@pytest.mark.exhaustive
def test_every_mutant_is_caught(tmp_path: Path) -> None:
    copy = mutants.copied(tmp_path)
    assert [mutant.name for mutant in mutants.MUTANTS if mutants.caught_by(mutant, copy) is None] == []
