"""What TARGET means on the command line."""

import argparse
import importlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from leafwise.errors import Error

if TYPE_CHECKING:
    from leafwise.core.tree import Tree

HELP = "a checkpoint (a file, a folder or a URL), or package.module:name of a model or of a function that builds one"

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def resolve(target: str) -> Any:
    """The object that TARGET names: the path of a file, or what an import path leads to."""
    if os.path.exists(target) or "://" in target or not _DOTTED.fullmatch(target):
        if not os.path.exists(target) and "://" not in target:
            raise Error(f"{target!r} is not a file, and not of the form package.module:name")
        return target
    module_name, _, attributes = target.partition(":")
    sys.path.insert(0, os.getcwd())  # as python -m does
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise Error(f"cannot import {module_name}: {type(error).__name__}: {error}") from error
    for name in attributes.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise Error(f"cannot find {target}: {error}") from error
    if isinstance(found, type) or not _is_model(found):
        return _call(target, found)
    return found


def selected(target: str, query: str | None) -> "Tree":
    """The tree of TARGET, or the part of it that a query picks, which must be some."""
    from leafwise.core.tree import tree

    found = tree(resolve(target))
    if query is not None:
        found = found.select(query)
        if not len(found):
            raise Error(f"no leaf of {target} matches {query!r}")
    return found


def depth(text: str) -> int:
    """What --depth takes."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("a depth is 0 or more")
    return number


def _is_model(obj: Any) -> bool:
    from leafwise.core.registry import find

    return find(type(obj)) is not None


def _call(target: str, build: Any) -> Any:
    if not callable(build):
        return build  # the walk says what it is, and what could be walked
    try:
        return build()
    except Exception as error:
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        raise Error(
            f"{target}() raised {type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"
        ) from error
