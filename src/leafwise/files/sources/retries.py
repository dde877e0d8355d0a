"""Requests to remote file systems that are repeated if they fail for a reason that may pass."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from leafwise.files.sources.remote import remote_errors

T = TypeVar("T")

TRIES = 5
PATIENCE = 60.0  # seconds after which no further attempt begins; the libraries below have retries of their own
FIRST_PAUSE = 0.5  # seconds; each pause is twice as long as the one before, and shortened at random
_LONGEST_PAUSE = 15.0


class CutOffError(ConnectionError):
    """Fewer bytes arrived than were requested, or others than were sent."""


def retried(url: str, work: Callable[[], T], verb: str = "read", opening: bool = False) -> T:
    """Calls `work`, again and again as long as it fails for a reason that may pass. Any exception becomes a FileError
    that names the URL and the number of attempts. With `opening`, a server that cannot be reached is an error at once:
    the address may be wrong."""
    with remote_errors(url, verb) as errors:
        began = time.monotonic()
        while True:
            errors.attempts += 1
            try:
                return work()
            except Exception as error:
                from leafwise.files.sources.remote_reasons import is_transient  # late: it imports ssl, which is slow

                is_last = errors.attempts >= TRIES or time.monotonic() - began > PATIENCE
                if is_last or not is_transient(error, opening):
                    raise
            pause = min(FIRST_PAUSE * 2 ** (errors.attempts - 1), _LONGEST_PAUSE)
            time.sleep(pause * random.uniform(0.5, 1))
