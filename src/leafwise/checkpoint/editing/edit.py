"""`lw.edit`: writes a changed copy of a checkpoint."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from leafwise.checkpoint.editing.planning import EditOptions, prepared
from leafwise.checkpoint.editing.result import Edit
from leafwise.core.work.executor_tasks import Workers


def edit(
    source: Any,
    out: "str | os.PathLike[str]",
    *,
    keep: Any = None,
    drop: Any = None,
    rename: Any = None,
    cast: Any = None,
    saturate: bool = False,
    transpose: Any = None,
    resize: Mapping[Any, Any] | None = None,
    split: Mapping[str, Any] | None = None,
    fuse: Mapping[str, Any] | None = None,
    tie: Mapping[str, str] | None = None,
    untie: Any = None,
    set: Mapping[str, Any] | None = None,
    delete: Any = None,
    metadata: Mapping[str, str] | None = None,
    formula: str | None = None,
    copy: Any = None,
    lora: Any = None,
    allow: Iterable[str] = (),
    ties: Literal["once", "copy"] = "once",
    shard_size: int | str | None = None,
    format: Literal["safetensors", "dcp", "orbax"] | None = None,
    dry_run: bool = False,
    progress: bool = False,
    executor: Any = None,
) -> Edit:
    """Writes a changed copy of a checkpoint, without loading it: only headers are read to plan, and values are copied a
    chunk at a time. Ties, plain values and metadata are kept, and everything gets checksums.

    Returns an `Edit`, which lists the steps. With `dry_run=True`, nothing is written. If anything about the edit is
    wrong, such as a rule that matches nothing, this raises an `EditError` that lists every problem, and writes nothing.

    All options use the names of the source; `rename` is applied last. Queries are those of `Tree.select`, and a glob
    also matches plain values.

    - `keep` and `drop` take a query or a list of them.
    - `rename` takes what `lw.load` takes: a dict of prefixes, pairs of patterns, or a function.
    - `cast` takes a dtype for all floating-point parameters and buffers, or a dict from queries to dtypes; the last
      query that matches counts. A value that does not fit is an error, or, with `saturate=True`, becomes the nearest
      that fits.
    - `transpose` takes a query for arrays with two axes, or a dict from queries to orders of axes.
    - `resize` takes a dict from queries to sizes, which cut or pad axis 0, or to dicts such as `{"size": 32064, "axis":
      0, "fill": "mean"}`.
    - `split` and `fuse` replace one entry of a name: `{"blocks.*.attn.qkv": ["q", "k", "v"]}` and
      `{"blocks.*.attn.{q,k,v}": "qkv"}`, or dicts with `into`, `axis`, `heads` and, for `split`, `sizes`.
    - `tie` takes a dict from a name to the name that it becomes another name of, with `.T` for transposed. If there is
      an array with the first name, its values must be equal. `untie` takes a query for names that become arrays of
      their own.
    - `set` and `delete` change plain values.
    - `formula` computes with several checkpoints, given as a dict of sources by name, or as a list (`a`, `b`, …):
      `"average"`, or sums such as `"base + 0.5 * (tuned - base)"`. All must have the same leaves. Integers must be
      equal in all sources, unless `copy` matches them: then they are taken from the first source.
    - `lora` merges a LoRA adapter of PEFT into the weights.
    - `allow={"objects"}` leaves out objects that a file cannot contain.
    - `metadata`, `ties`, `shard_size`, `format` and `progress` are those of `lw.save`. If `out` ends in `.npz` or
      `.params` (MXNet), only arrays are written, under each of their names.
    - With `executor`, other processes read the sources and write the new files, as for `lw.stats`; all must be able to
      write to the folder of `out`, which cannot be a URL. The files become visible at the end, as always.

    >>> import tempfile, torch, leafwise as lw
    >>> source = {"model.weight": torch.ones(2, 4), "optimizer.momentum": torch.zeros(2, 4)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/model.safetensors"
    ...     edited = lw.edit(source, path, keep="model.**", rename={"model": ""}, cast="bfloat16")
    ...     t = lw.open(path)
    ...     t["weight"].dtype, len(t)
    ('bfloat16', 1)
    """
    options = EditOptions(
        keep=keep,
        drop=drop,
        rename=rename,
        cast=cast,
        saturate=saturate,
        transpose=transpose,
        resize=resize,
        split=split,
        fuse=fuse,
        tie=tie,
        untie=untie,
        set=set,
        delete=delete,
        metadata=metadata,
        formula=formula,
        copy=copy,
        lora=lora,
        allow=allow,
        ties=ties,
        shard_size=shard_size,
        format=format,
    )
    workers = None if executor is None else Workers(executor)
    with prepared(source, out, options, by_workers=workers is not None) as job:
        if not dry_run:
            job.write(progress, workers)
        return job.result
