"""`lw.verify`: every checksum of a file, compared."""

import os
from typing import Any, NamedTuple

from leafwise.core.bars import bar
from leafwise.core.tree import Tree, tree
from leafwise.errors import FileError
from leafwise.files import filling, open_file
from leafwise.files.arrays import Storage, Strided


class Verified(NamedTuple):
    """What was compared, all of it right: leaves and bytes with checksums, and leaves that have none; shards that are
    bound to their index, which says what each of them holds, and shards that are not."""

    leaves: int
    bytes: int
    unchecked: int
    bound: int = 0
    unbound: int = 0


def verify(path: "str | os.PathLike[str] | Tree", *, progress: bool = False) -> Verified:
    """Compares every checksum of a file, a folder or a URL. Raises `ChecksumError` with all that is damaged.

    A file without checksums, which others than leafwise wrote, proves nothing: its leaves are counted as unchecked.
    Shards whose index does not say what they hold may be of different saves: they are counted as unbound.

    >>> import tempfile, torch, leafwise as lw
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lw.verify(lw.save(torch.nn.Linear(4, 2), f"{folder}/model.safetensors"))
    Verified(leaves=2, bytes=40, unchecked=0, bound=0, unbound=0)
    """
    given: Any = path
    if not isinstance(given, str | os.PathLike | Tree) or (isinstance(given, Tree) and not given.is_file):
        raise FileError(f"lw.verify takes a file, a folder or a URL, not {type(path).__name__}")
    t = path if isinstance(path, Tree) else tree(open_file(path))
    try:
        return _verify(t, progress)
    finally:
        if t is not path:
            t.close()


def _verify(t: Tree, progress: bool) -> Verified:
    columns = t._columns
    storages: dict[int, tuple[str, Storage]] = {}
    unchecked = 0
    leaves = t._first_rows
    for row in leaves:
        value: Any = columns.row_values[row]
        if isinstance(value, Strided) and value.storage.sums is not None:
            storages.setdefault(id(value.storage), (columns.row_text(row), value.storage))
        else:
            unchecked += 1
    total = sum(storage.nbytes for _, storage in storages.values())
    with bar(total, "verifying", progress) as count:
        compared = filling.prove(storages.values(), count)
    file: Any = columns.node_objects[0]
    return Verified(len(leaves) - unchecked, compared, unchecked, file.bound, file.unbound)
