"""Finds Chromium or Chrome, for the tests of the viewer in a browser.

    python -m tools.chromium

installs Debian's package if there is none, where that is possible. Otherwise it says that those tests are skipped, and
how to change that. It never fails.
"""

import os
import shutil
import subprocess
import sys

VARIABLE = "LEAFWISE_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome")
_UPDATE = ["apt-get", "update"]
_INSTALL = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
_SECONDS = 600  # for each of the two commands
# Containers often have little shared memory, and no sandbox.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
MISSING = f"""\
**********************************************************************
Chromium was not found: the viewer is NOT tested in a browser.
Every test that needs one is skipped.
Install it, in Debian: apt-get install chromium
or name another one:   export {VARIABLE}=/path/to/chrome
**********************************************************************"""


def find_chromium() -> str | None:
    """The path of Chromium or Chrome; None if there is none. A path in LEAFWISE_CHROMIUM takes precedence."""
    given = os.environ.get(VARIABLE)
    if given:
        return shutil.which(given)
    return next(filter(None, map(shutil.which, NAMES)), None)


def starts(path: str) -> bool:
    """Whether a browser can show an empty page here. One that is installed may still lack what it needs."""
    command = [path, "--headless", *ARGUMENTS, "--dump-dom", "about:blank"]
    try:
        shown = subprocess.run(command, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return shown.returncode == 0 and b"<html" in shown.stdout


def install() -> None:
    """Installs Debian's package, if this is Debian and the user may."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print("Installing Chromium, for the tests of the viewer (once) ...", flush=True)
    for command in (_UPDATE, _INSTALL):
        try:
            ran = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"{' '.join(command)}: {error}", file=sys.stderr)
            return
        if ran.returncode:  # `update` fails if one of several servers does, and `install` may still work
            print(f"{' '.join(command)}:\n{ran.stderr[-1_000:]}", file=sys.stderr)


def main() -> int:
    # A path that was named, and is wrong, is not repaired by an installation.
    if find_chromium() is None and not os.environ.get(VARIABLE):
        install()
    path = find_chromium()
    if path is None:
        print(MISSING, file=sys.stderr)
    elif not starts(path):
        print(MISSING.replace("was not found", f"does not start ({path})"), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
