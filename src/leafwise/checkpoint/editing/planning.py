"""The plan of an edit, made from headers alone: what the new checkpoint contains, or every problem."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from leafwise.checkpoint.editing import arguments
from leafwise.checkpoint.editing.changes import Changes
from leafwise.checkpoint.editing.contents import Contents, SourceRows, add_arrays, unreadable
from leafwise.checkpoint.editing.formulas import factors_of
from leafwise.checkpoint.editing.job import EditJob, edited_leaves
from leafwise.checkpoint.editing.lora import Adapter, adapters_of
from leafwise.checkpoint.editing.merging import Merge
from leafwise.checkpoint.editing.plain import delete_values, prune_nodes, set_value
from leafwise.checkpoint.editing.renaming import apply_renames, renaming
from leafwise.checkpoint.editing.result import Edit, EditSize, Steps
from leafwise.checkpoint.editing.selecting import Selection
from leafwise.checkpoint.saving.collecting import cannot_store, check_circles, check_containers
from leafwise.checkpoint.saving.write_arguments import (
    byte_count,
    check_name,
    header_metadata,
    target_folder,
    target_path,
)
from leafwise.core.parts import check_listed
from leafwise.core.path import escape, plural, shown_file
from leafwise.core.tree import Tree
from leafwise.core.verbs import check_sendable, opened
from leafwise.core.work.fleet import refuse_pattern
from leafwise.errors import EditError, FileError, QueryError, WalkError
from leafwise.files.folders.shard_names import own_shards
from leafwise.files.formats.format import Format, format_of_suffix
from leafwise.files.sources.folder import INDEX
from leafwise.files.sources.remote import is_url, remote
from leafwise.files.stored_file import StoredFile
from leafwise.files.writing.destination import destination
from leafwise.files.writing.remote_destination import local_path

ALLOWABLE = ("objects",)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MOST_PROBLEMS = 40  # problems in the message; the error has all of them


@dataclass(frozen=True)
class EditOptions:
    """The options of `lw.edit`, which describes them."""

    keep: Any = None
    drop: Any = None
    rename: Any = None
    cast: Any = None
    saturate: bool = False
    transpose: Any = None
    resize: Any = None
    split: Any = None
    fuse: Any = None
    tie: Any = None
    untie: Any = None
    set: Any = None
    delete: Any = None
    metadata: Any = None
    formula: str | None = None
    copy: Any = None
    lora: Any = None
    allow: Iterable[str] = ()
    ties: str = "once"
    shard_size: int | str | None = None
    format: str | None = None


@contextmanager
def prepared(source: Any, out: Any, options: EditOptions, by_workers: bool = False) -> Iterator[EditJob]:
    """Plans an edit. The sources are open until the end of the block. If it is carried out `by_workers`, all sources
    must be checkpoints, and the target must be one that several processes can write."""
    with ExitStack() as files:
        parts = _sources(source, options.formula)
        for part in parts.values():
            refuse_pattern(part, "edit")
        trees = {label: files.enter_context(opened(part, "edit")) for label, part in parts.items()}
        for t in trees.values() if by_workers else ():
            check_sendable(t, "edit")
        yield _planned(trees, out, options, files, by_workers)


def _sources(source: Any, formula: Any) -> dict[str, Any]:
    """The sources by the names that a formula gives them."""
    if formula is None:
        if isinstance(source, list | tuple):
            raise QueryError('several sources need formula=, such as formula="average"')
        return {"the source": source}
    named: dict[Any, Any] = {"a": source}
    if isinstance(source, Mapping):
        named = dict(source)
    elif isinstance(source, list | tuple):
        labels = _LETTERS if len(source) <= len(_LETTERS) else [f"a{number}" for number in range(1, len(source) + 1)]
        named = dict(zip(labels, source, strict=False))
    if not named or not all(isinstance(name, str) and name.isidentifier() for name in named):
        raise QueryError('formula= needs sources with names that can be used in it, such as {"base": …, "tuned": …}')
    return named


def _planned(trees: dict[str, Tree], out: Any, options: EditOptions, files: ExitStack, by_workers: bool) -> EditJob:
    steps = Steps()
    target, format_name, array_format = _target(out, trees, options)
    if by_workers:
        _check_shared_target(target, format_name, array_format)
    new_name = renaming(options.rename)
    for t in trees.values():
        check_listed(t, "edit")
        if t.is_whole:
            check_circles(t.columns, t.root)
    sources = {label: SourceRows(t) for label, t in trees.items()}
    first = next(iter(sources.values()))
    for label, source in sources.items():
        steps.problems += [
            f"two arrays in {label} are called {escape(name)!r}; edit a part of it, as in lw.edit(t['part'], out)"
            for name in source.ambiguous
        ]
    selection = Selection(sources, steps)
    before = _size_of(first, selection.contents)
    selection.keep(arguments.queries_of(options.keep))
    selection.drop(arguments.queries_of(options.drop))
    selection.drop_renamed(new_name)
    contents = _collected(selection, options, steps)
    for path, factor in adapters_of(options.lora) if options.lora is not None else ():
        adapter = Adapter(path, factor, files, options.saturate)
        _check_no_source(target, _files_of(adapter.source.tree))
        adapter.merge(contents, steps)
    changes = _changed(contents, first, options, steps)
    _check_references(contents, changes, selection, steps)
    last_name = renaming(options.rename)  # only what is written counts as renamed
    apply_renames(contents, last_name, selection.references, steps)
    dropping = set(new_name.idle())
    leaves_out = options.rename if isinstance(options.rename, Mapping) else {}
    steps.problems += [
        f"rename= {rule!r} matches no name that is written"
        for rule in last_name.idle()
        if rule in dropping or leaves_out.get(rule, "") is not None
    ]
    prune_nodes(contents)
    _check_objects(contents, options.allow, steps)
    _check_contents(contents, format_name, array_format, steps)
    if steps.problems:
        every_name = dict.fromkeys(name for source in sources.values() for name in source.rows)
        raise EditError(_refusal(steps.problem_lines(every_name), target), steps.problems)
    _add_notes(first, contents, target, format_name, array_format is not None, options.ties == "copy", steps)
    after = EditSize(
        len(contents.arrays),
        len(contents.names()),
        sum(array.nbytes for array in contents.arrays.values()),
        0 if array_format is not None else len(contents.scalars),
    )
    return EditJob(
        Edit(target, steps.steps, edited_leaves(contents), before, after, steps.notes),
        contents,
        changes.equal,
        header_metadata({**contents.metadata, **(options.metadata or {})}, format_name),
        format_name,
        array_format,
        None if options.shard_size is None else byte_count(options.shard_size),
        copies=array_format is not None or options.ties == "copy",
        saturate=options.saturate,
    )


# -- where to ----------------------------------------------------------------------------------------------


def _target(out: Any, trees: dict[str, Tree], options: EditOptions) -> tuple[str, str, Format | None]:
    """The path to write, the name of the format, and the format if it stores nothing but arrays."""
    if options.ties not in ("once", "copy"):
        raise QueryError(f'ties= takes "once" or "copy", not {options.ties!r}')
    unknown = [kind for kind in _allowed(options.allow) if kind not in ALLOWABLE]
    if unknown:
        raise QueryError(f'allow= takes {{"objects"}}, not {unknown[0]!r}')
    sources = [name for t in trees.values() for name in _files_of(t)]
    if options.format in ("dcp", "orbax"):
        target = target_folder(out, options.shard_size, options.format)
        _check_no_source_inside(target, sources)
        return target, options.format, None
    target = target_path(out)
    named = format_of_suffix(target) if options.format is None else None
    _check_no_source(target, sources)
    if named is None or named.write is None:
        check_name(target, options.format, "edit")
        return target, "safetensors", None
    if options.shard_size is not None or options.metadata is not None:
        raise QueryError(f"{named.name} files have no shards and no metadata; write safetensors instead")
    return target, named.name, named


def _check_shared_target(target: str, format_name: str, array_format: Format | None) -> None:
    """Raises if several processes cannot write the target together."""
    if array_format is not None or format_name == "orbax":
        what = "an Orbax checkpoint" if format_name == "orbax" else f"a file of the format {format_name}"
        raise QueryError(f"{what} is written by one process; leave out executor=, or write safetensors")
    if is_url(target):
        raise QueryError(
            f"cannot write {shown_file(target)} with executor=: workers write into one file, which a store does not "
            "allow; leave out executor=, or write to a folder that all workers reach and upload that"
        )


def _check_no_source_inside(folder: str, files: Iterable[str]) -> None:
    """Raises if a folder that is written to contains a file that is read."""
    for name in files:
        if _is_same_file(folder, os.path.dirname(name) or "."):
            raise FileError(
                f"cannot write into {shown_file(folder)}: {shown_file(name)} in it is also a source; write to another "
                "folder, then replace this one with it"
            )


def _check_no_source(target: str, files: Iterable[str]) -> None:
    """Raises if writing would replace a file that is read, or remove it."""
    for name in files:
        if own_shards(os.path.basename(target), [os.path.basename(name)]) and _is_same_file(
            os.path.dirname(target) or ".", os.path.dirname(name) or "."
        ):
            raise FileError(
                f"cannot write {shown_file(target)}: the source {shown_file(name)} is a shard of a checkpoint of that "
                "name, and would be removed; write another file, then replace this one with it"
            )
        for path in (target, target + INDEX):
            if _is_same_file(path, name):
                raise FileError(
                    f"cannot write {shown_file(path)}: it is also a source; write another file, then replace this one "
                    "with it"
                )


def _allowed(allow: Any) -> list[Any]:
    return list(allow) if isinstance(allow, Iterable) and not isinstance(allow, str) else [allow]


def _files_of(t: Tree) -> list[str]:
    """The files that a tree was opened from."""
    root = t.columns.node_objects[0]
    return root.file_names() if isinstance(root, StoredFile) else []


def _is_same_file(path: str, other: str) -> bool:
    here, there = (local_path(name) if is_url(name) else name for name in (path, other))
    if here is None and there is None:
        (files, inside), (other_files, other_inside) = remote(path), remote(other)
        # One file system may have several names, such as s3:// and s3a://.
        return path == other or (files.protocol == other_files.protocol and inside == other_inside)
    if here is None or there is None:
        return False
    try:
        return os.path.samefile(here, there)
    except OSError:  # one of them does not exist, or is not on this machine
        return False


# -- what ---------------------------------------------------------------------------------------------------


def _size_of(source: SourceRows, contents: Contents) -> EditSize:
    columns = source.columns
    leaves = {columns.ties.get(row, row) for row in source.rows.values()}
    facts = columns.facts(sorted(leaves))
    return EditSize(len(leaves), len(source.rows), sum(fact.spec.nbytes for fact in facts), len(contents.scalars))


def _collected(selection: Selection, options: EditOptions, steps: Steps) -> Contents:
    """The contents that are kept, before any array is changed."""
    first = selection.first
    names = selection.first_names
    for label, source in selection.sources.items():
        for name, reason in unreadable(source, selection.names[label]).items():
            steps.problems.append(f"{escape(name)} in {label}: {reason}")
    apart = []
    for query in arguments.queries_of(options.untie):
        tied = [name for name in selection.matching(query) if _is_tied(first, name)]
        if not tied:
            steps.problems.append(f"untie= {query!r} matches no tied name in the source")
        else:
            steps.add("untie", str(query), tied)
        apart += tied
    values = {}
    if options.formula is not None:
        copied = _copied(selection, options, steps)
        merge = Merge(selection.sources, factors_of(options.formula, list(selection.sources)), copied)
        merge.check(selection.names, steps)
        if not steps.problems:
            step = steps.add("compute", options.formula, [])
            values = merge.values(names, options.saturate, steps)
            step.names = list(values)
            if different := merge.not_tied_everywhere(names):
                steps.notes.append(f"not tied in every source, so stored separately: {', '.join(different[:5])}")
                apart += different
    elif options.copy is not None:
        raise QueryError("copy= needs formula=: it takes leaves from the first of several sources")
    if steps.problems:  # nothing can be said about arrays that cannot be read, or that do not belong together
        bad = unreadable(first, names)
        names = [name for name in names if name not in bad]
    add_arrays(selection.contents, first, names, apart, values)
    return selection.contents


def _copied(selection: Selection, options: EditOptions, steps: Steps) -> list[str]:
    copied: list[str] = []
    for query in arguments.queries_of(options.copy):
        matched = selection.matching(query)
        if not matched:
            steps.matched_nothing("copy", query)
        steps.add("copy", f"{query}, from {selection.label}", matched)
        copied += matched
    return copied


def _is_tied(source: SourceRows, name: str) -> bool:
    row = source.rows[name]
    return row in source.columns.ties or row in source.columns.further_rows


def _changed(contents: Contents, first: SourceRows, options: EditOptions, steps: Steps) -> Changes:
    changes = Changes(contents, first.matching, steps)
    for query, order in arguments.transposes_of(options.transpose):
        changes.transpose(query, order)
    for query, resize in arguments.resizes_of(options.resize):
        changes.resize(query, resize)
    # Before splits: `cast` uses the names of the source.
    changes.cast(arguments.casts_of(options.cast))
    for parts in arguments.splits_of(options.split):
        changes.split(parts)
    for parts in arguments.fuses_of(options.fuse):
        changes.fuse(parts)
    for name, to in arguments.ties_of(options.tie):
        changes.tie(name, to)
    delete_values(contents, arguments.items_of(options.delete), steps)
    for name, value in arguments.pairs_of(options.set, "set", '{"epoch": 0}'):
        set_value(contents, name, value, steps)
    return changes


def _check_references(contents: Contents, changes: Changes, selection: Selection, steps: Steps) -> None:
    """Optimizers that refer to parameters by name must still find the parameters that they were saved with."""
    first = selection.first
    names = [*contents.arrays, *contents.ties]
    referred = selection.references.parameters.intersection(changes.reshaped)
    states = selection.references.states_of(referred, names)
    if states:
        optimizer = states[0].partition(".state.")[0]
        steps.problems.append(
            f"the state of {escape(optimizer)!r} would not fit {', '.join(map(escape, sorted(referred)[:3]))}; "
            f"drop it, as in drop={optimizer + '.**'!r}"
        )
        return
    positions = [name for name, array in contents.arrays.items() if array.kind == "s"]
    dropped = any(
        first.columns.leaf_section(first.columns.ties.get(row, row)) == "weights" and name not in contents.values
        for name, row in first.rows.items()
    )
    by_name = selection.references.states_of(selection.references.parameters, positions)
    if (changes.reshaped or dropped) and len(by_name) < len(positions):
        steps.notes.append(
            "the source contains optimizer state that refers to weights by position; it may not fit them now"
        )


def _check_objects(contents: Contents, allow: Iterable[str], steps: Steps) -> None:
    if not contents.objects:
        return
    listed = [f"{escape(name)} ({what})" for name, what in contents.objects.items()]
    if "objects" in _allowed(allow):
        more = f" and {len(listed) - 5:,} others" if len(listed) > 5 else ""
        steps.notes.append(f"left out, because a file cannot contain it: {', '.join(listed[:5])}{more}")
        return
    steps.problems += [
        f"cannot write {text}; drop it, or leave out all objects with allow={{'objects'}}" for text in listed
    ]


def _check_contents(contents: Contents, format_name: str, array_format: Format | None, steps: Steps) -> None:
    for name, array in contents.arrays.items():
        if array_format is not None:
            bad_name = "the format does not allow this name" if "\0" in name else ""
            reason = array_format.cannot_store(array.dtype) or bad_name
        else:
            reason = cannot_store(array.dtype, format_name)
        if reason:
            steps.problems.append(f"cannot write {escape(name)}: {reason}")
    for name in contents.names():
        if name in contents.scalars:
            steps.problems.append(f"cannot write {escape(name)}: there is a plain value with the same name")
    try:
        check_containers(contents.scalars, contents.names())
    except WalkError as error:
        steps.problems.append(str(error))
    if not contents.arrays and not steps.problems:
        steps.problems.append("the new file would contain no array")


def _add_notes(
    first: SourceRows, contents: Contents, target: str, format_name: str, only_arrays: bool, copies: bool, steps: Steps
) -> None:
    if format_name == "safetensors" and destination(target).index_text() is not None:
        steps.notes.append(f"replaces the checkpoint of {shown_file(target + INDEX)}, an index of shards")
    if first.not_stored:
        steps.notes.append(f"left out: {first.not_stored:,} arrays that are not part of a state dict")
    if format_name == "orbax" and contents.ties and not copies:
        steps.notes.append(
            f"Orbax has no ties: {len(contents.ties):,} tied names are left out; with ties='copy' they are written, too"
        )
    if only_arrays and (contents.ties or contents.scalars):
        steps.notes.append(
            f"{format_name} stores only arrays: {len(contents.ties):,} tied names are written as copies, and "
            f"{len(contents.scalars):,} plain values are left out"
        )


def _refusal(problems: list[str], target: str) -> list[str]:
    lines = [f"cannot write {shown_file(target)}; nothing was written"]
    lines += [f"  {problem}" for problem in problems[:_MOST_PROBLEMS]]
    if more := len(problems[_MOST_PROBLEMS:]):
        lines.append(f"  … and {plural(more, 'more problem', 'more problems')}; error.problems lists them all")
    return lines
