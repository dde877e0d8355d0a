"""The argument TARGET and the option `--where`."""

import argparse
import importlib.util
import os
import re
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from leafwise.errors import Error
from leafwise.files.remote import is_url

if TYPE_CHECKING:
    from leafwise.core.tree import Tree

HELP = (
    "a checkpoint (a file, a folder or a URL), or package.module:name: a model, or a function that builds one, "
    "which is imported and run"
)

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


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
    if isinstance(obj, type) or not _is_model(obj):
        return _call(target, obj)
    return obj


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


def add_where(parser: argparse.ArgumentParser) -> None:
    """Adds `--where`. Its former names are refused, with a hint."""
    parser.add_argument("--where", metavar="QUERY", help="use only leaves whose path matches, such as '**.weight'")
    parser.add_argument("--query", "--only", dest="where", action=_Renamed, help=argparse.SUPPRESS)


class _Renamed(argparse.Action):
    """A former name of an option."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, value: Any, spelling: str | None = None
    ) -> None:
        parser.error(f"{spelling} is now called --{self.dest}")


def selected(target: str, where: str | None) -> "Tree":
    """The tree of TARGET, or the leaves that match a query. Raises an error if none matches."""
    from leafwise.core.tree import tree

    whole = tree(resolve(target))
    if where is None:
        return whole
    selection = whole.select(where)
    if not len(selection):
        raise Error(f"no leaf of {target} matches {where!r}")
    return selection


def depth(text: str) -> int:
    """Parses the value of `--depth`."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"the depth must be 0 or more, not {number}")
    return number


def _is_model(obj: Any) -> bool:
    from leafwise.core.registry import find

    return find(type(obj)) is not None


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
