"""Writing a small file that leafwise makes for people, a picture or a report. Checkpoints have their own writer."""

import os
import secrets
from contextlib import suppress

from leafwise.errors import FileError


def write_small_file(path: str, data: bytes) -> None:
    """Writes a file next to its place, and moves it there. If that fails, an existing file stays as it was."""
    target = os.path.realpath(path)
    staged = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.part")
    try:
        with open(staged, "xb") as file:
            file.write(data)
        os.replace(staged, target)
    except OSError as error:
        raise FileError(f"cannot write {path!r}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            os.remove(staged)
