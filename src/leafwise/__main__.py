"""`python -m leafwise`."""

import os
import sys


def _leave_out_the_current_folder() -> None:
    """`python -m` looks for modules in the current folder first: the `json.py` of somebody's download would be run."""
    try:
        here = os.getcwd()
    except OSError:  # it is gone, and Python did not put it there
        return
    if not sys.flags.safe_path and sys.path[:1] == [here]:
        del sys.path[0]


_leave_out_the_current_folder()

from leafwise.cli import main  # noqa: E402

sys.exit(main())
