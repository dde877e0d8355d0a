"""The argument TARGET, the words that find leaves in it, and the option `--where`."""

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from leafwise.errors import Error
from leafwise.files.sources.remote import is_url

if TYPE_CHECKING:
    from leafwise.core.tree import Tree

HELP = (
    "a checkpoint (a file, a folder or a URL), or package.module:name: a model, or a function that builds one, "
    "which is imported and run"
)

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def may_be(text: str) -> bool:
    """Whether a word on the command line is a TARGET, or was meant to be one: it exists, or looks like the name of a
    file, a URL or an import path."""
    looks = os.sep in text or "/" in text or os.path.splitext(text)[1] != "" or _DOTTED.fullmatch(text) is not None
    return looks or is_url(text) or os.path.lexists(text)


def resolve(target: str) -> Any:
    """The path of a file, or the object that an import path refers to.

    Importing runs code. Therefore, if anything exists on disk under this name, even a broken link, it is treated as a
    file: `leafwise show *` imports nothing, whatever the files are called.
    """
    if os.path.lexists(target) or is_url(target):
        return file(target)
    if not _DOTTED.fullmatch(target):
        raise Error(f"cannot open {target!r}: there is no such file, and it does not have the form package.module:name")
    module_name, _, attributes = target.partition(":")
    _reach(module_name.partition(".")[0])
    try:
        obj: Any = importlib.import_module(module_name)
    except Exception as error:
        raise Error(f"cannot import {module_name}: {type(error).__name__}: {error}") from error
    for name in attributes.split("."):
        try:
            obj = getattr(obj, name)
        except AttributeError as error:
            raise Error(f"cannot find {target}: {error}") from error
    from leafwise.core.registry import find

    return _call(target, obj) if isinstance(obj, type) or find(type(obj)) is None else obj


def file(target: str) -> str:
    """The path or URL in FILE. A path that exists is never treated as a URL, whatever its folders are called."""
    return os.path.abspath(target) if is_url(target) and os.path.lexists(target) else target


def _reach(name: str) -> None:
    """Makes the current folder importable if it contains the module and no other module of that name is installed.

    The folder is added at the end of `sys.path`, so that nothing in it hides an installed module. It is not added if
    the module is somewhere else.
    """
    try:
        folder = os.getcwd()
    except OSError:  # the current folder was deleted
        return
    own = PathFinder.find_spec(name, [folder])
    if own is None or folder in sys.path or "" in sys.path:
        return
    installed = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
    if installed is None or installed.loader is None:  # no loader: a folder without an __init__.py
        sys.path.append(folder)
    elif own.loader is not None and own.origin != installed.origin:
        raise Error(
            f"cannot import {name}: it is in the current folder and elsewhere: {own.origin!r} and "
            f"{installed.origin!r}; to use the one in the current folder, set PYTHONPATH=."
        )


def add_words(parser: argparse.ArgumentParser) -> None:
    """Adds WORD, which finds leaves, after TARGET."""
    parser.add_argument(
        "words",
        metavar="WORD",
        nargs="*",
        help="use only leaves whose path contains every WORD, such as q_proj; the path of a node means everything "
        "below it, and a WORD with wildcards is a query",
    )


def add_where(parser: argparse.ArgumentParser) -> None:
    """Adds `--where`. Its former names are refused, with a hint."""
    parser.add_argument(
        "--where",
        metavar="QUERY",
        help="use only leaves whose path matches, such as '**.weight'; the path of a node means everything below it",
    )


def selected(target: str, where: str | None, words: Sequence[str] = ()) -> "Tree":
    """The tree of TARGET, or the leaves that match a query and every word. Raises an error if none matches."""
    from leafwise.core.tree import tree

    whole = tree(resolve(target))
    selection = whole if where is None else whole.select(where)
    if where is not None and not len(selection):
        from leafwise.core.find import suggestion

        raise Error(f"no leaf of {target} matches {where!r}{suggestion(whole, where)}")
    if not words:
        return selection
    matches = selection.find(*words)
    if not len(matches):
        raise Error(_nothing_found(target, selection, words))
    return matches


def _nothing_found(target: str, selection: "Tree", words: Sequence[str]) -> str:
    from leafwise.core.find import nearest

    for word in words:
        if not len(selection.find(word)):
            if selection.is_whole and word in selection and not hasattr(selection[word], "columns"):
                return f"no leaf of {target} contains {word!r}; it is a plain value: leafwise read {target} {word}"
            return f"no leaf of {target} contains {word!r}{nearest(selection, word)}"
    return f"no leaf of {target} contains all of {', '.join(map(repr, words))}"


def leaf_path(whole: "Tree", path: str) -> str:
    """The path of a leaf, a node or a plain value. If there is nothing at this path, it may be a part of the path of
    exactly one leaf."""
    from leafwise.core.path import listed
    from leafwise.errors import PathError

    try:
        whole[path]
    except PathError as error:
        paths = [str(name) for name, _ in whole.find(path).items()]
        if len(paths) > 1:
            raise Error(f"{len(paths):,} leaves contain {path!r}: {listed(paths, 4)}; give more of the path") from error
        if not paths:
            raise
        return paths[0]
    return path


def depth(text: str) -> int:
    """Parses the value of `--depth`."""
    return _at_least(0, text, "depth")


def count(text: str) -> int:
    """Parses the value of `--top`."""
    return _at_least(1, text, "number")


def _at_least(least: int, text: str, what: str) -> int:
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"the {what} must be {least} or more, not {number}")
    return number


def _call(target: str, build: Any) -> Any:
    if not callable(build):
        return build  # the walk will raise an error that says what it is
    try:
        return build()
    except Exception as error:
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        raise Error(
            f"{target}() raised {type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"
        ) from error
