"""A message about an unknown name lists the names that can stand there, few of them where the meant one is known."""

import pytest

from pe_lab.system.names import FIRST, MOST, unknown_name

LONG = [f"name_{number:02}" for number in range(MOST + 1)]


@pytest.mark.parametrize(
    ("known", "name", "listed", "listing"),
    [
        (LONG, "name_2", FIRST, True),
        (LONG, "other", len(LONG), False),
        (LONG[:MOST], "name_2", MOST, False),
    ],
)
def test_a_long_list_is_cut_where_the_meant_name_is_known(known: list, name: str, listed: int, listing: bool) -> None:
    message = unknown_name("pe", known, name, " in there", listing="pe-lab list")
    rule = message.rpartition("pe must be one of ")[2]
    assert sum(one in rule for one in known) == listed
    assert (f"{len(known) - FIRST} others" in rule, "pe-lab list" in rule) == (listing, listing)
    assert " in there" in rule
    assert repr(name) in message
