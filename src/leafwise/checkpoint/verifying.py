"""`lw.verify`: verifies every checksum of a file."""

import os
from typing import Any, NamedTuple, overload

from leafwise.core.parts import first_rows
from leafwise.core.results.result import Result
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.core.work.executor_tasks import Workers
from leafwise.core.work.fleet import each_checkpoint, is_pattern
from leafwise.core.work.progress import bar
from leafwise.errors import FileError
from leafwise.files.arrays.stored import Stored
from leafwise.files.reading import checked_reads
from leafwise.files.stored_file import StoredFile


class _VerifiedFields(NamedTuple):
    leaves: int
    bytes: int
    unchecked: int
    without_checksums: tuple[str, ...] = ()
    bound: int = 0
    unbound: int = 0


class Verified(Result, _VerifiedFields, kind="verified"):
    """The result of `lw.verify` for an undamaged checkpoint.

    `leaves` and `bytes` count the leaves that match their checksums. `unchecked` counts leaves without a checksum, and
    `without_checksums` lists the formats they are stored in. `bound` counts the shards whose index records what each
    of them contains; `unbound` counts the other shards, which may be from another save. `ok` is True if everything
    could be checked.

    >>> import tempfile, torch, leafwise as lw
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"w": torch.ones(2)}, f"{folder}/model.pt")
    ...     verified = lw.verify(f"{folder}/model.pt")
    >>> verified.ok, verified.leaves, verified.unchecked
    (True, 1, 0)
    """

    __slots__ = ()

    @property
    def ok(self) -> bool:
        """Whether every leaf has a checksum, and every shard belongs to its index."""
        return not self.unchecked and not self.unbound


@overload
def verify(source: "str | os.PathLike[str] | Tree", *, progress: bool = False, executor: None = None) -> Verified: ...
@overload
def verify(source: "str | os.PathLike[str] | Tree", *, progress: bool = False, executor: Any) -> Any: ...
def verify(source: "str | os.PathLike[str] | Tree", *, progress: bool = False, executor: Any = None) -> Any:
    """Compares a checkpoint with its checksums. If leaves are damaged, raises a `ChecksumError` that lists them.

    `source` is a file, a folder, a URL or the Tree of a checkpoint. `progress=True` shows a progress bar.

    `lw.save` writes checksums, and so do NumPy (`.npz`) and PyTorch (`.pt`), whose files are zip files. Leaves without
    a checksum are counted as `unchecked`: those of other formats, and those of a `.pt` file that was written after
    `torch.serialization.set_crc32_options(False)`. Shards are counted as `unbound` if their index does not record what
    they contain, because then they could be from different saves.

    With `executor`, other processes read the file, and `source` may be a pattern, as for `lw.stats`: the result for a
    pattern is a `Fleet`, whose `errors` has the damaged checkpoints.

    >>> import tempfile, torch, leafwise as lw
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     verified = lw.verify(lw.save(torch.nn.Linear(4, 2), f"{folder}/model.safetensors"))
    >>> print(verified)
    2 leaves, 40 B: every checksum matches
    >>> verified.ok, verified.leaves
    (True, 2)
    """
    given: Any = source
    if not isinstance(given, str | os.PathLike | Tree) or (isinstance(given, Tree) and not given.is_file):
        raise FileError(f"lw.verify takes a file, a folder or a URL, not {type(source).__name__}")
    if executor is not None and isinstance(source, str | os.PathLike) and is_pattern(source):
        return each_checkpoint(
            source, "verify", executor, lambda path, workers: _verified(path, False, workers), progress
        )
    return _verified(source, progress, None if executor is None else Workers(executor))


def _verified(source: Any, progress: bool, workers: Workers | None) -> Verified:
    with opened(source, "verify") as t:
        columns, leaves = t.columns, first_rows(t)
        values = ((row, columns.row_values[row]) for row in leaves)
        checked = [
            (columns.row_text(row), value) for row, value in values if isinstance(value, Stored) and value.is_checked()
        ]
        with bar(sum(array.spec.nbytes for _, array in checked), "verifying", progress) as count:
            compared = checked_reads.verify_arrays(checked, count, workers)
        root, unchecked = columns.node_objects[0], len(leaves) - len(checked)
        if not isinstance(root, StoredFile):
            return Verified(len(checked), compared, unchecked)
        for check in root.further_checks if t.is_whole and not t.root else ():
            check()
        without = root.without_checksums if unchecked else ()
        return Verified(len(checked), compared, unchecked, without, root.bound, root.unbound)
