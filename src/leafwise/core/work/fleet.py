"""Many checkpoints at a time: those that match a pattern, each with a result or an error."""

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from leafwise.core.results.result import Table
from leafwise.core.work.executor_tasks import Workers
from leafwise.core.work.progress import bar
from leafwise.errors import Error, PathError, QueryError, WorkerError

PATTERNS = "leafwise.files.sources.patterns"  # imported when a pattern is given, because core may not import files
# The verbs that take patterns, and what a progress bar calls them.
FLEET_VERBS = {"stats": "measuring", "check": "checking", "diff": "comparing", "verify": "verifying"}


class Fleet(Table, Mapping[str, Any], kind="fleet"):
    """The results of a verb for every checkpoint that matches a pattern, by path or URL. Prints as a table.

    `fleet["runs/a/model.safetensors"]` is the result for one checkpoint: the one that the verb returns for it alone.
    `errors` has the checkpoints without a result, such as damaged ones, each with its error. `ok` is True if there are
    no errors, and every result is good.

    >>> import tempfile, torch, leafwise as lw
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
    ...     for run in ("a", "b"):
    ...         _ = lw.save({"w": torch.ones(2)}, f"{folder}/{run}.safetensors")
    ...     fleet = lw.verify(f"{folder}/*", executor=pool)
    >>> len(fleet), fleet.errors, fleet.ok
    (2, {}, True)
    """

    def __init__(self, verb: str, results: dict[str, Any], errors: dict[str, Error]) -> None:
        self.verb, self.errors = verb, errors
        self._results = results

    def __getitem__(self, name: str) -> Any:
        if name in self.errors:
            raise self.errors[name]
        if name not in self._results:
            raise PathError(f'"{name}" is not a checkpoint of this fleet')
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, name: object) -> bool:
        return name in self._results

    @property
    def ok(self) -> bool:
        """Whether every checkpoint has a result, and every result is good: no finding worse than a note, every
        checksum compared, nothing different."""
        return not self.errors and all(_is_good(result) for result in self._results.values())


def _is_good(result: Any) -> bool:
    return bool(getattr(result, "ok", getattr(result, "same", True)))


def is_pattern(source: Any) -> bool:
    """Whether the source of a verb is a pattern of paths, rather than a path. What exists is a path."""
    if not isinstance(source, str | os.PathLike):
        return False
    name = os.fspath(source)
    if not isinstance(name, str) or not any(sign in name for sign in "*?["):
        return False
    if "://" in name:
        return bool(import_module(PATTERNS).is_remote_pattern(name))
    return not os.path.lexists(name)


def refuse_pattern(source: Any, verb: str) -> None:
    """Raises if the source of a verb that takes one checkpoint is a pattern."""
    if is_pattern(source):
        raise QueryError(f"lw.{verb} takes one checkpoint, not the pattern {os.fspath(source)!r}")


def each_checkpoint(
    pattern: str | os.PathLike[str],
    verb: str,
    executor: Any,
    work: Callable[[str, Workers], Any],
    progress: bool = False,
) -> Fleet:
    """The result of `work` for each checkpoint that matches a pattern. A checkpoint that cannot be read does not stop
    the others; workers that cannot work do."""
    Workers(executor)  # refuses what is not an executor before anything is read
    names: list[str] = import_module(PATTERNS).checkpoints(os.fspath(pattern))
    with bar(None, FLEET_VERBS[verb], progress) as count:
        workers = Workers(executor, count)

        def outcome(name: str) -> Any:
            try:
                return work(name, workers)
            except WorkerError:
                raise
            except Error as error:
                return error

        outcomes = list(zip(names, workers.concurrently(outcome, names), strict=True))
    errors = {name: error for name, error in outcomes if isinstance(error, Error)}
    return Fleet(verb, {name: result for name, result in outcomes if name not in errors}, errors)
