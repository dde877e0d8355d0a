"""`leafwise read`: prints the values of a leaf, or a slice of them."""

import argparse
import sys
from typing import Any

from leafwise.cli import target
from leafwise.cli.output import say, show
from leafwise.core.leaf import shape_text
from leafwise.core.path import escape
from leafwise.core.results.result import Result
from leafwise.errors import Error


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "read",
        help="print the values of a leaf, or a slice of them",
        description="Prints values as NumPy does. From a file, only the slice that you ask for is read.",
        epilog="example: leafwise read model.safetensors 'layers.0.weight[0:2, :8]'",
    )
    parser.add_argument("target", metavar="TARGET", help=target.HELP)
    parser.add_argument(
        "path",
        metavar="PATH[SLICE]",
        help="the path of a leaf, or a part of it that only one leaf has; to print only a slice, add an index in "
        "brackets",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: shape, dtype and nested lists")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from leafwise.core.leaf import Leaf
    from leafwise.core.tree import tree

    word, index = parsed(options.path)
    with tree(target.resolve(options.target)) as whole:
        path = target.leaf_path(whole, word)
        leaf = whole[path]
        if path != word and isinstance(leaf, Leaf) and not options.json:
            say(path, sys.stderr)
        if not isinstance(leaf, Leaf):
            if index:
                raise Error(f"cannot slice {path}: it is not a leaf")
            if isinstance(leaf, Result):  # the tree at the path of a node
                show(leaf, as_json=False)
            else:
                print(escape(str(leaf)))  # not say(), which would hide parts of a URL: a value is printed as it is
            return 0
        array = leaf.numpy(index)
        if options.json:
            import json

            wide = array.astype("float64") if array.dtype.kind == "V" else array
            values = wide.tolist() if array.dtype.kind != "c" else [str(number) for number in array.reshape(-1)]
            json.dump({"path": path, "shape": list(array.shape), "dtype": leaf.dtype, "values": values}, sys.stdout)
            print()
            return 0
        import numpy as np

        with np.printoptions(threshold=200, edgeitems=3):
            text = np.array2string(array.astype("float32") if array.dtype.kind == "V" else array)
        for line in text.splitlines():
            print(escape(line))
        say(f"{shape_text(array.shape)} {leaf.dtype}", sys.stderr)
    return 0


def parsed(text: str) -> tuple[str, tuple[Any, ...]]:
    """Splits a path from its index.

    >>> parsed("0.weight[0:2, ..., -1]")
    ('0.weight', (slice(0, 2, None), Ellipsis, -1))
    """
    path, bracket, inside = text.partition("[")
    if not bracket:
        return text, ()
    if not inside.endswith("]"):
        raise Error(f"cannot read {text!r}: the brackets do not match")
    return path, tuple(_part(part.strip(), text) for part in inside[:-1].split(",") if part.strip())


def _part(text: str, whole: str) -> Any:
    if text == "...":
        return ...
    try:
        numbers = [int(number) if number.strip() else None for number in text.split(":")]
    except ValueError:
        raise Error(
            f"cannot read the index {text!r} of {whole!r}; write numbers and slices, such as [0:2, :8]"
        ) from None
    if len(numbers) == 1:
        return numbers[0]
    if len(numbers) > 3:
        raise Error(f"cannot read the index {text!r} of {whole!r}: a slice has at most start, stop and step")
    return slice(*numbers)
