"""Which files this process has open, for tests that check that they are closed."""

import os
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")  # only on Linux


def open_files(folder: Path) -> list[str]:
    """The open files in a folder. Other threads of this process may open and close other files at any time."""
    files = (os.path.realpath(descriptor) for descriptor in DESCRIPTORS.iterdir())
    return [file for file in files if file.startswith(f"{folder.resolve()}{os.sep}")]
