"""A message about an unknown name lists the names that can stand there, few of them where the meant one is known."""

import pytest

from pe_lab.config import find_folders
from pe_lab.system.names import MAX_LISTED_NAMES, SHORTENED_NAMES, nearest_names, unknown_name_message

LONG = [f"name_{number:02}" for number in range(MAX_LISTED_NAMES + 1)]


@pytest.mark.parametrize(
    ("known", "name", "listed", "listing"),
    [
        (LONG, "name_2", SHORTENED_NAMES, True),
        (LONG, "other", SHORTENED_NAMES, True),
        (LONG, "other", len(LONG), False),
        (LONG[:MAX_LISTED_NAMES], "name_2", MAX_LISTED_NAMES, False),
    ],
)
def test_a_long_list_is_cut_where_a_name_is_near_or_a_command_lists_it(
    known: list, name: str, listed: int, listing: bool
) -> None:
    message = unknown_name_message("pe", known, name, " in there", listing="pe-lab list" if listing else "")
    rule = message.rpartition("pe must be one of ")[2]
    assert sum(one in rule for one in known) == listed
    assert (f"{len(known) - SHORTENED_NAMES} others" in rule, "pe-lab list" in rule) == (listing, listing)
    assert " in there" in rule
    assert repr(name) in message


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nope", "none"),
        ("rotary", "rope"),
        ("learned", "learnable"),
        ("sin", "sinusoidal"),
        ("absolute", "learnable"),
        ("relative", "relative_bias"),
    ],
)
def test_names_of_encodings_in_other_libraries_are_understood(name: str, meant: str) -> None:
    names = find_folders().names("pe")
    assert meant in nearest_names(name, names)
    assert "did you mean" in unknown_name_message("pe", names, name)


def test_all_is_no_misspelled_name() -> None:
    message = unknown_name_message("pe", ["wall", "rope"], "all", listing="pe-lab list")
    assert "did you mean" not in message
    assert "pe=glob(*)" in message
