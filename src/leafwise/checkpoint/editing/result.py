"""The result of `lw.edit`."""

from typing import NamedTuple

from leafwise.checkpoint.editing.steps import Step
from leafwise.core.results.result import Table


class EditedLeaf(NamedTuple):
    """An array of the new checkpoint: its name, the arrays of the source that it is made from, what was changed, and
    the name that it is tied to, if it is not stored by itself."""

    name: str
    sources: tuple[str, ...]
    changes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    tied_to: str = ""


class EditSize(NamedTuple):
    """How much a checkpoint contains."""

    leaves: int
    names: int
    nbytes: int
    values: int


class Edit(Table, kind="edit"):
    """What `lw.edit` did, or, with `dry_run=True`, would do.

    `steps` lists what was changed, `leaves` the arrays of the new checkpoint, `before` and `after` how much each
    checkpoint contains, and `notes` remarks. `path` is the file that was written, or would be; `written` is whether it
    was.

    >>> import torch, leafwise as lw
    >>> source = {"encoder.weight": torch.zeros(4, 4), "head.weight": torch.zeros(2, 4), "epoch": 3}
    >>> print(lw.edit(source, "encoder.safetensors", drop="head.**", set={"epoch": 0}, dry_run=True))
    drop  head.**  1 leaf  −32 B
    set   epoch = 3 → 0
    <BLANKLINE>
    2 leaves, 96 B, 1 plain value → 1 leaf, 64 B, 1 plain value
    dry run: encoder.safetensors was not written
    """

    def __init__(
        self,
        path: str,
        steps: list[Step],
        leaves: list[EditedLeaf],
        before: EditSize,
        after: EditSize,
        notes: list[str],
    ) -> None:
        self.path, self.steps, self.leaves, self.notes = path, steps, leaves, notes
        self.before, self.after = before, after
        self.written = False
