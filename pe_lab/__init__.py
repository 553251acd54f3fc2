"""A laboratory for positional encodings in transformers.

`pe_lab.encodings` has the encodings and `pe_lab.attention` the function attend(); both can be used in any model. The
programs are `pe-lab run`, `pe-lab report` and others: see pe_lab.cli.
"""

import os
import sys
from contextlib import suppress

__version__ = "0.1.0"


def _leave_current_folder() -> None:
    """Take the current folder off the path, where `python -m pe_lab` has put it; not that of the checkout.

    Otherwise a file that lies beside a ledger, as pyarrow.py, would be imported in the place of an installed package.
    Users' classes are found there all the same: see `pe_lab.config.users.find_classes`.
    """
    if sys.argv[:1] != ["-m"] or sys.flags.safe_path:  # -m: while packages of the program are imported, only then
        return
    program = sys.orig_argv[-len(sys.argv)].rpartition("-m")[2]  # -m pe_lab.run, or -mpe_lab.run
    checkout = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    with suppress(OSError):  # the current folder was removed, and is not on the path
        if program.partition(".")[0] == __name__ and sys.path[0] == os.getcwd() != checkout:
            del sys.path[0]


_leave_current_folder()
