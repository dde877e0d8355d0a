"""What Ctrl-C says if it comes while a function changes a model in place."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruption_explained(verb: str, repair: str) -> Iterator[None]:
    """Adds to Ctrl-C, and to other exceptions that are not errors, that the model is partly changed."""
    explanation = f"interrupted while lw.{verb} was writing: the model is partly changed; {repair} before you use it"
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(explanation) from stop
    except BaseException as stop:
        if not isinstance(stop, Exception):
            stop.add_note(explanation)
        raise
