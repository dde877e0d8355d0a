"""Opens a checkpoint with leafwise, and compares it with the truth."""

import re
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tools.checkpoint_kinds.kind import Kind, Written
from tools.checkpoint_kinds.truth import Bits, Truth, plain_values

import leafwise as lw


class Outcome(NamedTuple):
    """`refused` is the reason why a checkpoint does not open; `problems` are disagreements with the truth."""

    kind: Kind
    refused: str = ""
    problems: tuple[str, ...] = ()
    arrays: int = 0
    ties: int = 0
    optimizer: int = 0
    opaque: tuple[str, ...] = ()


def missing(kind: Kind) -> list[str]:
    """The modules that a kind needs and that are not installed."""
    return [module for module in kind.extra if find_spec(module) is None]


def outcome(kind: Kind, folder: Path) -> Outcome:
    """Writes a checkpoint of this kind, opens it, and compares."""
    written = kind.write(folder)
    try:
        t = lw.open(written.path)
    except lw.Error as error:
        return Outcome(kind, refused=str(error).replace(str(written.path), written.path.name).splitlines()[0])
    with t:
        arrays = {".".join(path.names): leaf for leaf in t for path in leaf.paths}
        state = [path for path in arrays if _is_below(path, written.optimizer)]
        return Outcome(
            kind,
            problems=(
                *_problems(t, arrays, written),
                *_problems_of_conversion(t, arrays, folder),
                *_false_alarms(written.path),
            ),
            arrays=len(arrays),
            ties=len(t.ties),
            optimizer=len(state),
            opaque=opaque_classes(t),
        )


def _false_alarms(path: Path) -> list[str]:
    """What `lw.check` says about code in a file that runs none."""
    try:
        found = lw.check(path, select="LW7")
    except lw.Error as error:
        return [f"check refuses what opens: {error}"]
    return [f"false alarm: {one.path}: {one.code} {one.message}" for one in found.errors]


def opaque_classes(t: lw.Tree) -> tuple[str, ...]:
    """The classes of the objects that were not loaded, each once."""
    return tuple(dict.fromkeys(class_name for _, class_name in t.opaque))


def _is_below(path: str, above: str | None) -> bool:
    return above is not None and fnmatchcase(path, f"{above}.*")


def _problems(t: lw.Tree, arrays: dict[str, Any], written: Written) -> list[str]:
    truth = written.truth
    places = _places(truth.arrays, list(arrays))
    problems = [f"{path} is not in the tree" for path in truth.arrays if path not in places]
    problems += [f"{path} is in the tree, but not in the object" for path in arrays if path not in places.values()]
    for path, place in places.items():
        bits = _bits(arrays[place])
        if bits != truth.arrays[path]:
            problems.append(f"{path} is {bits}, and was saved as {truth.arrays[path]}")
    ties = {frozenset(".".join(name.path.names) for name in tie.names) for tie in t.ties}
    expected = {frozenset(places.get(path, path) for path in tie) for tie in truth.ties}
    problems += [f"{' and '.join(sorted(tie))} are not tied" for tie in expected - ties]
    problems += [f"{' and '.join(sorted(tie))} are tied, but were not" for tie in ties - expected]
    problems += _plain_problems(t, truth)
    types = {".".join(node.path.names): node.type for node in t.nodes}
    for path, class_name in t.opaque:
        if not path.names:
            types[""] = class_name  # the type of the root is the format of the file
    for path, class_name in truth.modules.items():
        shown = types.get(path, "absent").rpartition(".")[2]
        if shown != class_name:
            problems.append(f"the module {path or 'at the root'} is {shown}, and was saved as {class_name}")
    problems += [f"{name} is not listed as opaque" for name in written.opaque if name not in opaque_classes(t)]
    if written.optimizer and not any(_is_below(path, written.optimizer) for path in arrays):
        problems.append(f"there is no optimizer state at {written.optimizer}")
    return problems


def _problems_of_conversion(t: lw.Tree, arrays: dict[str, Any], folder: Path) -> list[str]:
    """Converts the checkpoint, and compares the new file with the tree."""
    if not arrays:
        return []  # a file without arrays, such as training_args.bin, is not converted
    path = folder / "converted" / "model.safetensors"
    path.parent.mkdir()
    try:
        edit = lw.edit(t, path, allow={"objects"})
    except lw.Error as error:
        return [f"cannot be converted: {error}"]
    with lw.open(path, max_bytes=2_000_000_000) as new:
        stored = {".".join(path.names): leaf for leaf in new for path in leaf.paths}
        expected = {path: leaf for path, leaf in arrays.items() if leaf.persistent}
        problems = [f"converted: {path} is missing" for path in expected if path not in stored]
        problems += [f"converted: {path} is new" for path in stored if path not in expected]
        for path, leaf in expected.items():
            before, after = _bits(leaf), _bits(stored[path]) if path in stored else None
            if after is not None and leaf.dtype == after.dtype and before != after:
                problems.append(f"converted: {path} is {after}, and was {before}")
        ties = [
            {frozenset(".".join(name.path.names) for name in tie.names) for tie in tree.ties if tie.leaf.persistent}
            for tree in (t, new)
        ]
        problems += [f"converted: {' and '.join(sorted(tie))} are tied in one file only" for tie in ties[0] ^ ties[1]]
        left_out = [note for note in edit.notes if note.startswith("left out")]
        values = _values(new)
        for path, value in _values(t).items():
            if path not in values:
                if not left_out:
                    problems.append(f"converted: {path} = {value!r:.60} is missing")
            elif repr(values[path]) != repr(value):
                problems.append(f"converted: {path} is {values[path]!r:.60}, and was {value!r:.60}")
    return problems


def _values(t: lw.Tree) -> dict[str, Any]:
    """The plain values of a tree, by path, and those inside of lists and dicts."""
    return {
        ".".join((key, *below)): value
        for key, _, _, content in t.columns.scalar_items(t.root)
        for below, value in plain_values(content)
        if not key.startswith("__metadata__")
    }


def _plain_problems(t: lw.Tree, truth: Truth) -> list[str]:
    values = _values(t)
    problems = []
    for path, value in truth.plain.items():
        if path not in values:
            problems.append(f"{path} = {value!r:.60} is not in the tree")
        elif repr(values[path]) != repr(value):  # which also compares types, and nan
            problems.append(f"{path} is {values[path]!r:.60}, and was saved as {value!r:.60}")
    return problems


def _bits(leaf: Any) -> Bits:
    try:
        array = leaf.numpy()
    except lw.Error as error:
        return Bits(f"unreadable: {error}", leaf.shape, "")
    return Bits.of(array)._replace(dtype=leaf.dtype, shape=leaf.shape)


def _places(expected: dict[str, Bits], paths: list[str]) -> dict[str, str]:
    """Expected path → path in the tree. A `*` in an expected path stands for any text, and must be unambiguous."""
    places = {path: path for path in expected if path in set(paths)}
    left = [path for path in paths if path not in places]
    for path in expected:
        if "*" in path:
            matches = [place for place in left if fnmatchcase(place, path)]
            if len(matches) == 1:
                places[path] = matches[0]
    return places


def shortened(text: str, limit: int = 120) -> str:
    text = re.sub(r"^'[^']*'( at byte [\d,]+)?: (the pickle cannot be read: )?", "", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
