"""What comes from files cannot command the terminal, and what is too deep to be read is refused."""

import pytest

from pe_lab.ledger.__main__ import main
from pe_lab.ledger.ledger import Ledger
from pe_lab.system.errors import in_one_line
from pe_lab.system.escaping import escape_control
from pe_lab.system.files import LedgerError, read_json

TITLE = "\x1b]0;mine\x07"  # sets the title of a terminal


def test_control_characters_are_shown_escaped():
    assert escape_control(TITLE) == "\\x1b]0;mine\\x07"
    assert escape_control("\x9b2J \u202e \udcff") == "\\x9b2J \\u202e \\udcff"
    assert escape_control("α – [2K|$") == "α – [2K|$"
    assert in_one_line(ValueError(f"{TITLE}\nx")) == "\\x1b]0;mine\\x07 x"


def test_a_ledger_that_is_verified_does_not_command_the_terminal(tmp_path, program):
    Ledger(tmp_path).prepare()
    run = tmp_path / f"run{TITLE}"
    (run / "checkpoints").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    status, lines, err = program(main, "verify", tmp_path)
    out = "\n".join(lines)
    assert status == 1
    assert "run\\x1b]0;mine\\x07" in out
    assert "\x1b" not in out + err


def test_json_that_is_too_deep_is_not_read(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("[" * 200_000)
    with pytest.raises(LedgerError, match="cannot be read: it is nested too deeply"):
        read_json(path)
