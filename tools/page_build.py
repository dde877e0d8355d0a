"""Builds the page of the viewer again, with the pinned packages, and compares it with what is committed.

    python -m tools.page_build

Fails if a file differs, or if the script is too large. Where Node is missing, or packages cannot be downloaded, it says
that the page was not compared, and passes.
"""

import gzip
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, BUILT = ROOT / "page", ROOT / "src" / "leafwise" / "web" / "page"
NODE = (20, 19)  # the oldest release that can build it
LARGEST = 150_000  # bytes of app.js, compressed
_SECONDS = 600
# What npm says if the registry cannot be reached; anything else is an error in the page.
_NO_NETWORK = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT|ENOTCACHED"
    r"|network (request|timeout)|CERT_|certificate|E40[1347]|E50\d"
)


class NotComparedError(Exception):
    """The page cannot be built on this machine."""


def main() -> int:
    problems = size_problems(BUILT)
    try:
        with tempfile.TemporaryDirectory() as folder:
            problems += differences(built_into(Path(folder)), BUILT)
    except NotComparedError as reason:
        stars = "*" * 70
        print(f"{stars}\nThe page of the viewer was NOT built and compared: {reason}.\n{stars}", file=sys.stderr)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def size_problems(folder: Path) -> list[str]:
    """Whether the script is small enough to be loaded at once."""
    script = folder / "app.js"
    if not script.exists():
        return [f"{script} is missing; run: make page"]
    size = len(gzip.compress(script.read_bytes(), 9, mtime=0))
    if size >= LARGEST:
        return [f"{script.name} has {size:,} bytes when it is compressed; it must have less than {LARGEST:,}"]
    return []


def built_into(folder: Path) -> Path:
    """Builds the page into a folder, from a copy of its sources, so that nothing is written elsewhere."""
    npm = shutil.which("npm")
    version = _node_version()
    if npm is None or version is None:
        raise NotComparedError("Node is not installed")
    if version < NODE:
        raise NotComparedError(f"Node {version[0]}.{version[1]} is too old; {NODE[0]}.{NODE[1]} is needed")
    source, out = folder / "page", folder / "built"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("node_modules"))
    # Not `npm ci`: it refuses a lock file without the optional packages of every other platform.
    _ran([npm, "install", "--no-save", "--ignore-scripts"], source, may_lack_network=True)
    _ran([npm, "run", "build", "--", "--outDir", str(out), "--emptyOutDir"], source)
    return out


def _node_version() -> tuple[int, int] | None:
    try:
        ran = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.match(r"v(\d+)\.(\d+)", ran.stdout)
    return None if found is None else (int(found[1]), int(found[2]))


def _ran(command: list[str], folder: Path, may_lack_network: bool = False) -> None:
    try:
        ran = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        if may_lack_network:
            raise NotComparedError("npm took too long") from error
        raise
    if ran.returncode == 0:
        return
    if may_lack_network and (found := _NO_NETWORK.search(ran.stdout + ran.stderr)):
        raise NotComparedError(f"npm cannot download its packages ({found[0]})")
    if "native binding" in ran.stdout + ran.stderr:
        raise NotComparedError("npm has no program of this version for this system")
    sys.exit(f"{' '.join(command)} failed:\n{ran.stdout}{ran.stderr}")


def differences(new: Path, committed: Path) -> list[str]:
    """The files that are not the same, byte for byte."""
    names = sorted(
        {str(path.relative_to(top)) for top in (new, committed) for path in top.rglob("*") if path.is_file()}
    )
    found = []
    for name in names:
        if not (committed / name).exists():
            found.append(f"src/leafwise/web/page/{name} is missing")
        elif not (new / name).exists():
            found.append(f"src/leafwise/web/page/{name} is not part of the page any more")
        elif (new / name).read_bytes() != (committed / name).read_bytes():
            found.append(f"src/leafwise/web/page/{name} differs from what page/ builds")
    return [*found, "The page must be built again; run: make page"] if found else []


if __name__ == "__main__":
    sys.exit(main())
