"""`lw.save`: writes a model, an optimizer or a dict of them, with checksums, and replaces the old file atomically."""

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, overload

from leafwise.checkpoint.joint_call import joint_call_of
from leafwise.checkpoint.saving.background import BackgroundSave, finish_saves
from leafwise.checkpoint.saving.diverged import checked_allow
from leafwise.checkpoint.saving.joint_save import JointSave, refused_format
from leafwise.checkpoint.saving.saved_content import collect
from leafwise.checkpoint.saving.write_arguments import (
    byte_count,
    check_name,
    header_metadata,
    target_folder,
    target_path,
    written,
)
from leafwise.core.parts import sharded_rows
from leafwise.core.verbs import opened
from leafwise.core.work.progress import bar
from leafwise.errors import QueryError
from leafwise.files.arrays.stored import Stored
from leafwise.files.casts import checked_cast, checked_dtype
from leafwise.files.formats.safetensors import CODES
from leafwise.files.reading import checked_reads


@overload
def save(
    source: Any,
    path: "str | os.PathLike[str]",
    *,
    where: Any = None,
    shard_size: int | str | None = None,
    dtype: str | None = None,
    cast: Literal[True, "saturate"] = True,
    metadata: Mapping[str, str] | None = None,
    ties: Literal["once", "copy"] = "once",
    format: Literal["safetensors", "dcp", "orbax"] | None = None,
    allow: Iterable[str] = (),
    background: Literal[False] = False,
    progress: bool = False,
) -> str: ...
@overload
def save(
    source: Any,
    path: "str | os.PathLike[str]",
    *,
    where: Any = None,
    shard_size: int | str | None = None,
    dtype: str | None = None,
    cast: Literal[True, "saturate"] = True,
    metadata: Mapping[str, str] | None = None,
    ties: Literal["once", "copy"] = "once",
    format: Literal["safetensors", "dcp", "orbax"] | None = None,
    allow: Iterable[str] = (),
    background: Literal[True],
    progress: bool = False,
) -> BackgroundSave: ...
@overload
def save(
    source: Any,
    path: "str | os.PathLike[str]",
    *,
    where: Any = None,
    shard_size: int | str | None = None,
    dtype: str | None = None,
    cast: Literal[True, "saturate"] = True,
    metadata: Mapping[str, str] | None = None,
    ties: Literal["once", "copy"] = "once",
    format: Literal["safetensors", "dcp", "orbax"] | None = None,
    allow: Iterable[str] = (),
    background: bool = False,
    progress: bool = False,
) -> str | BackgroundSave: ...
def save(
    source: Any,
    path: "str | os.PathLike[str]",
    *,
    where: Any = None,
    shard_size: int | str | None = None,
    dtype: str | None = None,
    cast: Literal[True, "saturate"] = True,
    metadata: Mapping[str, str] | None = None,
    ties: Literal["once", "copy"] = "once",
    format: Literal["safetensors", "dcp", "orbax"] | None = None,
    allow: Iterable[str] = (),
    background: bool = False,
    progress: bool = False,
) -> str | BackgroundSave:
    """Saves a model, an optimizer, or a dict of models, optimizers and plain values, as a normal safetensors file.

    Returns the path that was written; it may be a URL, such as `s3://bucket/model.safetensors`. Even if saving is
    interrupted, there is always a complete file at the path: the old one or the new one. Every leaf and the header get
    checksums, which `lw.load` and `lw.verify` compare.

    - `where` is a query: only the leaves that match are saved.
    - `shard_size` (bytes, or a string such as `"5GB"`) writes several files with an index, as Hugging Face does.
    - `dtype` casts floating-point parameters and buffers. If a value does not fit, this raises an error and the old
      file stays; with `cast="saturate"`, the nearest number that fits is used.
    - `metadata` is a dict of strings for the header.
    - `ties="copy"` stores a tied leaf under each of its names, for readers that need them all. By default it is stored
      once.
    - `format="safetensors"` writes safetensors under a name that belongs to another format, such as `model.pt`. Without
      it, these names are refused. `format="dcp"` writes a folder that `torch.distributed.checkpoint` loads,
      and `format="orbax"` one that Orbax's `StandardCheckpointer` restores, as NumPy arrays. `ties="copy"` is for
      programs that expect each name there, since Orbax has no ties.
      A model that is sharded over processes can only be saved with `format="dcp"`; every process must call this.
    - `allow={"diverged"}` saves such a model although the copies that several processes have of a parameter, or of
      optimizer state, are not equal. (Of buffers, this is a warning.)
    - `background=True` returns a `BackgroundSave` as soon as the values are copied; its `wait()` returns the path.
    - `progress=True` shows a progress bar.

    >>> import tempfile, torch, leafwise as lw
    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = lw.save({"model": model, "optimizer": optimizer, "step": 7}, f"{folder}/run.safetensors")
    ...     found = lw.open(path)
    ...     found["step"], found["model.weight"].shape, found["model.weight"].role
    (7, (2, 4), 'linear.weight')
    """
    finish_saves()
    if format in ("dcp", "orbax"):
        target, size = target_folder(path, shard_size, format), None
    else:
        target = target_path(path)
        check_name(target, format)
        size = None if shard_size is None else byte_count(shard_size)
    if ties not in ("once", "copy"):
        raise QueryError(f'ties= takes "once" or "copy", not {ties!r}')
    if not checked_cast(cast):
        raise QueryError('cast= takes True or "saturate", not False; to save without casting, leave out dtype=')
    if cast == "saturate" and dtype is None:
        raise QueryError('cast="saturate" needs dtype=')
    allows_diverged = checked_allow(allow)
    wanted = checked_dtype(dtype, CODES)
    header = header_metadata(metadata, format)
    with ExitStack() as files:
        t = files.enter_context(opened(source, "save"))
        if sharded_rows(t):
            if format != "dcp":
                raise refused_format(t)
            if ties == "copy":
                raise QueryError('ties="copy" is not for models that are sharded over processes; leave it out')
            call = joint_call_of(t, "save")
            assert call is not None
            files.enter_context(call.messages)
            joint = JointSave(call, target, header, allows_diverged)
            collect_sharded = partial(collect, t, where, wanted, False, format, cast == "saturate", sharded=True)
            share = joint.plan(t, collect_sharded, background)

            def work() -> str:
                with bar(share.nbytes, "saving", progress) as count:
                    return joint.write(share, count)
        else:
            collected = collect(t, where, wanted, ties == "copy", format, cast == "saturate")
            values = collected.snapshot() if background else collected.values
            checkpoint = collected.checkpoint(values, header)

            def work() -> str:
                # Verified first: damaged values must not be saved with new, valid checksums.
                named = zip(checkpoint.items, values, strict=True)
                checked_reads.verify_arrays([(item.name, value) for item, value in named if isinstance(value, Stored)])
                with bar(sum(item.nbytes for item in checkpoint.items), "saving", progress) as count:
                    return written(checkpoint, format, target, size, count)

        if not background:
            return work()
        still_open = files.pop_all()  # a source that is a file is closed once it is copied; other ranks are left last

        def work_then_close() -> str:
            with still_open:
                return work()

        return BackgroundSave(target, work_then_close)
