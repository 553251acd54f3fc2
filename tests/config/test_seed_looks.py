"""Numbers of seeds as a user writes them."""

import subprocess
import sys

import pytest

from pe_lab.config.seed_looks import looks_between, parse_seeds, study_looks


def test_the_usual_looks_lie_between_the_first_and_the_largest_number():
    assert looks_between(5, 12) == (5, 8, 12)  # of the protocol
    assert looks_between(3, 24) == (3, 5, 8, 12, 18, 24)
    assert looks_between(5, 9) == (5, 8, 9)
    assert looks_between(7, 7) == (7,)
    assert study_looks("2..3") == (2, 3)
    assert study_looks("3..24", [3, 10, 24]) == (3, 10, 24)


@pytest.mark.parametrize("text", ["", "3", "1..3", "5..3", "3...24", "3..24 ", "a..b", "3..1001", "-3..4"])
def test_other_texts_are_refused_in_one_line(text):
    with pytest.raises(ValueError, match=r"^decide\.seeds must be first\.\.most with 2 <= first <= most"):
        parse_seeds(text)


@pytest.mark.parametrize("looks", [[], [3], [3, 24, 12], [4, 24], [3, 3, 24]])
def test_looks_must_ascend_from_the_first_to_the_largest(looks):
    with pytest.raises(ValueError, match=r"^decide\.looks must ascend from 3 to 24"):
        study_looks("3..24", looks)


def test_reading_seeds_loads_nothing_heavy():
    code = (
        "import sys, pe_lab.config.seed_looks; print(sorted({'numpy', 'scipy', 'torch', 'pandas'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
