"""Shows a file, truncates it, and asks for everything: `python -m tests.web.truncating FILE BYTES`.

It is a process of its own: reading a part of a mapped file that is not there any more would end the process.
"""

import sys
from pathlib import Path

from tests.web.asking import Client
from tests.web.test_server import ask_all

import leafwise as lw
from leafwise.web import watched_files

if __name__ == "__main__":
    watched_files._EVERY = 0
    path, keep = Path(sys.argv[1]), int(sys.argv[2])
    with lw.view(path, browser=False, port=0, measure=False) as view:
        client = Client(view.url)
        client.api("rows", depth=9)
        with open(path, "r+b") as file:
            file.truncate(keep)
        statuses = ask_all(client)
        print(sorted(set(statuses)), client.api("progress")["warning"])
