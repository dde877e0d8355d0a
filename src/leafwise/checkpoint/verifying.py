"""`lw.verify`: verifies every checksum of a file."""

import os
from typing import Any, NamedTuple

from leafwise.core.progress import bar
from leafwise.core.tree import Tree, tree
from leafwise.errors import FileError
from leafwise.files import open_file, reader
from leafwise.files.arrays import Stored
from leafwise.files.stored_file import StoredFile


class Verified(NamedTuple):
    """What `lw.verify` found in a file without damage: the number of `leaves` and `bytes` that match their checksums;
    the number of `unchecked` leaves, which have no checksum, and their formats; the number of shards that are `bound`
    to an index, which records what each shard contains, and of those that are `unbound`."""

    leaves: int
    bytes: int
    unchecked: int
    without_checksums: tuple[str, ...] = ()
    bound: int = 0
    unbound: int = 0


def verify(path: "str | os.PathLike[str] | Tree", *, progress: bool = False) -> Verified:
    """Verifies every checksum of a file, a folder or a URL. Raises `ChecksumError`, which lists the damaged leaves.

    `lw.save` writes checksums, and so do NumPy (`.npz`) and PyTorch (`.pt`), whose files are zip files. Other formats
    have none, so their leaves are counted as unchecked. So are the leaves of a `.pt` file that was written after
    `torch.serialization.set_crc32_options(False)`. If an index does not record what its shards contain, they could be
    from different saves: they are counted as unbound.

    >>> import tempfile, torch, leafwise as lw
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lw.verify(lw.save(torch.nn.Linear(4, 2), f"{folder}/model.safetensors"))
    Verified(leaves=2, bytes=40, unchecked=0, without_checksums=(), bound=0, unbound=0)
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
    columns = t.columns
    checked: list[tuple[str, Stored]] = []
    total = 0
    leaves = t.first_rows
    for row in leaves:
        value: Any = columns.row_values[row]
        if isinstance(value, Stored) and value.is_checked():
            checked.append((columns.row_text(row), value))
            total += value.spec.nbytes
    with bar(total, "verifying", progress) as count:
        compared = reader.verify_arrays(checked, count)
    root, unchecked = columns.node_objects[0], len(leaves) - len(checked)
    if not isinstance(root, StoredFile):
        return Verified(len(checked), compared, unchecked)
    without = root.without_checksums if unchecked else ()
    return Verified(len(checked), compared, unchecked, without, root.bound, root.unbound)
