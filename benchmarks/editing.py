"""What bench_edit.py times, without importing torch, so that its memory can be measured alone.

python benchmarks/editing.py OUT SOURCE…     # writes the average of some checkpoints
"""

import sys
from contextlib import ExitStack

import leafwise as lw
from leafwise.files.arrays import Stored
from leafwise.files.checkpoint_writer import Checkpoint, Item, write
from leafwise.files.combined import Combined


def edit(sources: list[str], out: str, weights: list[float] | None = None) -> None:
    """Writes the weighted sum of checkpoints, or the only one as it is."""
    with ExitStack() as files:
        trees = [files.enter_context(lw.open(source)) for source in sources]
        items = []
        for rows in zip(*(tree.rows for tree in trees), strict=True):
            arrays: list[Stored] = [tree.columns.row_values[row] for tree, row in zip(trees, rows, strict=True)]
            name = ".".join(trees[0].columns.row_path(rows[0]).names)
            spec = arrays[0].spec
            array = arrays[0] if weights is None else Combined(arrays, weights, spec.dtype)
            items.append(Item(name, spec.shape or (), spec.dtype, "p", (None, None), array=array))
        write(Checkpoint(items, [], [], {}, {}, {}, {"format": "pt"}), out, None, lambda count: None)


if __name__ == "__main__":
    edit(sys.argv[2:], sys.argv[1], [1 / len(sys.argv[2:])] * len(sys.argv[2:]))
