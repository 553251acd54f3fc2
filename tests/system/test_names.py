"""A message about an unknown name lists the names that can stand there, few of them where the meant one is known."""

import pytest

from pe_lab.system.names import MAX_LISTED_NAMES, SHORTENED_NAMES, unknown_name_message

LONG = [f"name_{number:02}" for number in range(MAX_LISTED_NAMES + 1)]


@pytest.mark.parametrize(
    ("known", "name", "listed", "listing"),
    [
        (LONG, "name_2", SHORTENED_NAMES, True),
        (LONG, "other", len(LONG), False),
        (LONG[:MAX_LISTED_NAMES], "name_2", MAX_LISTED_NAMES, False),
    ],
)
def test_a_long_list_is_cut_where_the_meant_name_is_known(known: list, name: str, listed: int, listing: bool) -> None:
    message = unknown_name_message("pe", known, name, " in there", listing="pe-lab list")
    rule = message.rpartition("pe must be one of ")[2]
    assert sum(one in rule for one in known) == listed
    assert (f"{len(known) - SHORTENED_NAMES} others" in rule, "pe-lab list" in rule) == (listing, listing)
    assert " in there" in rule
    assert repr(name) in message
