"""What bench_edit.py times, without importing torch, so that its memory can be measured alone.

python benchmarks/editing.py OUT SOURCE…     # writes the average of some checkpoints
"""

import sys

import leafwise as lw


def copied_by_leafwise(source: str, out: str) -> None:
    lw.edit(source, out)


def averaged_by_leafwise(sources: list[str], out: str) -> None:
    lw.edit(sources, out, formula="average")


if __name__ == "__main__":
    averaged_by_leafwise(sys.argv[2:], sys.argv[1])
