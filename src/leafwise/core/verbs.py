"""How every verb opens its source, and closes it again."""

import os
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import TracebackType
from typing import Any

from leafwise.core.parts import check_found
from leafwise.core.tree import FILES, Tree, tree
from leafwise.core.work.garbage import rarely_collected
from leafwise.errors import Error, FileError, Unsupported, WalkError

# Packages that leafwise imports when a verb needs them, and what to install.
_OPTIONAL = {
    "fsspec": "'leafwise[remote]'",
    "gguf": "'leafwise[gguf]'",
    "ml_dtypes": "ml_dtypes",
    "numpy": "numpy",
    "pandas": "pandas",
    "torch": "'leafwise[torch]'",
    "triton": "triton",
}


class opened:  # noqa: N801
    """The tree of the source of a verb: `with opened(source, "stats") as t:`.

    At the end, a checkpoint that was opened here is closed; a Tree that was passed in stays open. If a package is not
    installed, raises an error that says what to install. With `live`, a checkpoint is refused; `action` is what the
    error says a file cannot do, if that is not the verb. `verify=False` opens a checkpoint without comparing the
    checksum of its header.
    """

    def __init__(self, source: Any, verb: str, *, live: bool = False, action: str = "", verify: bool = True) -> None:
        self._source, self._verb, self._live, self._verify = source, verb, live, verify
        self._action = action or verb.replace("_", " ")
        self._tree: Tree | None = None
        # A viewer stays open for hours.
        self._collecting: AbstractContextManager[None] = nullcontext() if verb == "view" else rarely_collected()

    def __enter__(self) -> Tree:
        self._collecting.__enter__()
        try:
            return self._opened()
        except BaseException:
            self._collecting.__exit__(None, None, None)
            raise

    def _opened(self) -> Tree:
        source = self._source
        is_path = isinstance(source, str | os.PathLike)
        try:
            t = tree(source if self._verify or not is_path else import_module(FILES).open_file(source, verify=False))
        except ModuleNotFoundError as error:
            _explain_missing_package(self._verb, error)
            raise
        except FileError as error:
            _explain_pattern(source, self._verb, error)
            raise
        self._tree = t if is_path else None
        if self._live and t.is_file:
            if is_path:
                t.close()
            why = f"lw.{self._verb} needs a model in memory; load the file into one first: lw.load(model, path)"
            raise Unsupported("a file", self._action, why)
        if self._live or self._verb == "groups":
            check_found(t, f"use lw.{self._verb} on")
        return t

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._collecting.__exit__(None, None, None)
        if self._tree is not None:
            self._tree.close()
        if isinstance(error, ModuleNotFoundError):
            _explain_missing_package(self._verb, error)


def check_sendable(t: Tree, verb: str) -> None:
    """Raises unless workers can reach the values of a tree: those of a checkpoint."""
    if not t.is_file:
        raise WalkError(
            f"lw.{verb} with executor= needs a checkpoint, not {t.columns.type_name(0) or 'a model'}: workers cannot "
            "reach values in memory; save it first: lw.save(model, path)"
        )


def _explain_pattern(source: Any, verb: str, error: FileError) -> None:
    """Raises an error that says how to use a pattern, if the source is one."""
    from leafwise.core.work.fleet import FLEET_VERBS, is_pattern  # late, because few programs need it

    if verb in FLEET_VERBS and is_pattern(source):
        raise FileError(
            f"{error}; for every checkpoint that matches, pass executor=, as in ThreadPoolExecutor()"
        ) from (error)


def _explain_missing_package(verb: str, error: ModuleNotFoundError) -> None:
    """Raises an error that says what to install, if the package is one that leafwise imports."""
    package = (error.name or "").partition(".")[0]
    if package in _OPTIONAL:
        raise Error(f"lw.{verb} needs {package}: pip install {_OPTIONAL[package]}") from error
