"""Tests that do more if there is time for it: `make long` sets LEAFWISE_LONG=1, and runs the files that import this."""

import os
from typing import TypeVar

T = TypeVar("T")
LONG = bool(os.environ.get("LEAFWISE_LONG"))
SEED = int(os.environ.get("LEAFWISE_SEED", 0))  # for what is drawn at random; the same in every run of `make test`


def short_or_long(short: T, long: T) -> T:
    """The smaller size, number or selection in `make test`, the larger one in `make long`."""
    return long if LONG else short


def count(what: str, number: int = 1) -> None:
    """Adds to the counts that `make long` and `make faults` record."""
    if path := os.environ.get("LEAFWISE_COUNTS"):
        with open(path, "a", encoding="utf-8") as file:  # one write, so that several processes can share the file
            file.write(f"{what} {number}\n")
