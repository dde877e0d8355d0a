"""Runs the tests that do more if there is time for it, at full length, and records the result.

    python -m tools.long_tests           every file that imports tests.long (ten minutes)
    python -m tools.long_tests faults    only saves that are killed, cut off, flipped and run out of space

What these tests draw at random is another sample in each run; `--seed` repeats one.
"""

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tools import sweeps
from tools.matrix import Failed, environment, outcome
from tools.tests import in_parallel

FAULTS = [
    "tests/checkpoint/test_concurrent_saves.py",
    "tests/checkpoint/test_damage.py",
    "tests/checkpoint/test_faults.py",
    "tests/files/test_s3_faults.py",
    "tests/files/test_streaming.py",
]


def long_tests() -> list[str]:
    """The test files that have a longer version."""
    files = sorted((sweeps.ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(sweeps.ROOT)) for file in files if "from tests.long import" in file.read_text("utf-8")]


def counted(file: Path) -> str:
    """What the tests counted, as a sentence."""
    counts: Counter[str] = Counter()
    for line in file.read_text("utf-8").splitlines():
        what, _, number = line.rpartition(" ")
        counts[what] += int(number)
    return ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items()))


def main() -> int:
    parser = sweeps.parser(__doc__, "tests: `faults`, or paths")
    options = parser.parse_args()
    is_faults = options.only == ["faults"]
    paths = FAULTS if is_faults else options.only or long_tests()
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder, "counts")
        counts.touch()
        drawn = {"LEAFWISE_RANDOM": "1", "LEAFWISE_SEED": str(options.seed)}
        env = environment(LEAFWISE_LONG="1", LEAFWISE_COUNTS=str(counts), **drawn)
        processes = in_parallel(min(4, os.cpu_count() or 1))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *processes, *paths]
        try:
            text = f"{outcome(command, sweeps.ROOT, env, 'long tests')}: {counted(counts)}."
        except Failed as failed:
            print(failed)
            return 1
    print(text)
    if is_faults or not options.only:
        name = "faults" if is_faults else "long"
        sweeps.record(f"make {name}", {name: text}, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
