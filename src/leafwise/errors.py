"""The exceptions that leafwise raises.

```
Error
├── PathError    (KeyError)             there is nothing at this path, or no leaf matches
├── QueryError   (ValueError)           a query, a path or another argument that is not valid
├── ArgumentError (TypeError)           an argument of the wrong type, or in the wrong place
├── WalkError    (TypeError)            an object, or a part of it, that leafwise cannot process
├── WriteError   (ValueError)           a value that cannot be written; nothing was changed
├── TieError     (ValueError)           a tie that cannot be made, kept or undone; nothing was changed
├── RuleError    (ValueError)           a rule that matches nothing, or contradicts another rule
├── NonFiniteError (ArithmeticError)    gradients that are not finite; nothing was changed
├── RankError    (RuntimeError)         processes that differ, or that cannot be reached
├── LoadError    (ValueError)           a checkpoint that does not fit the model; nothing was changed
├── EditError    (ValueError)           an edit of a checkpoint that cannot be made; nothing was written
├── FileError    (ValueError)           a file that is damaged or not supported, or that cannot be read or written
│   └── ChecksumError                   a file that does not match its checksums
├── WorkerError  (RuntimeError)         a worker of an executor that died, or that has another version of leafwise
└── Unsupported  (NotImplementedError)  an operation that a framework or format does not support
```

`TieWarning`, a UserWarning, warns that a tie was undone or cannot be kept.

Each is also the built-in exception that a caller would expect, so `except KeyError` works, too. A message names the
path, both sides of a mismatch, and what to do. It is plain text on one line, whatever names it contains, and does not
show secrets in URLs (see `printable`). Only a `LoadError` and an `EditError` may have several lines.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from leafwise.printable import escape, without_secrets


class Error(Exception):
    """The base class of all errors that leafwise raises.

    >>> import leafwise as lw
    >>> try:
    ...     lw.tree({"weight": {}})["wieght"]
    ... except lw.Error as error:
    ...     print(error)
    nothing at "wieght"; did you mean "weight"?
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(_plain(arg) if isinstance(arg, str) else arg for arg in args))

    def __str__(self) -> str:
        # KeyError would show the repr of its message, with quotes and escapes.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[object, ...]:
        # Restores the message without calling the class: a process pool hangs if an error cannot be unpickled.
        return _made_again, (type(self), self.args, self._kept())

    def _kept(self) -> dict[str, object]:
        return dict(vars(self))


def _plain(text: str) -> str:
    return escape(without_secrets(text))


def _made_again(cls: type[Error], args: tuple[object, ...], kept: dict[str, object]) -> Error:
    """The error that was pickled."""
    error = cls.__new__(cls, *args)
    error.args = args
    vars(error).update(kept)
    return error


class PathError(Error, KeyError):
    """There is nothing at this path, or no leaf matches. It is also a KeyError.

    >>> import torch, leafwise as lw
    >>> try:
    ...     lw.tree(torch.nn.Linear(4, 2))["wieght"]
    ... except lw.PathError as error:
    ...     print(error)
    nothing at "wieght"; did you mean "weight"?
    """


class QueryError(Error, ValueError):
    """A query, a path or another argument that is not valid. It is also a ValueError.

    >>> import torch, leafwise as lw
    >>> try:
    ...     lw.tree(torch.nn.Linear(4, 2)).select("{weight")
    ... except lw.QueryError as error:
    ...     print(error)
    cannot read the glob '{weight': its braces do not match
    """


class ArgumentError(Error, TypeError):
    """An argument of the wrong type, or in the wrong place. The message says what to write. It is also a TypeError.

    >>> import leafwise as lw
    >>> try:
    ...     lw.add_roles(3, {"gain": ("norm.scale", ("features",))})
    ... except lw.ArgumentError as error:
    ...     print(error)
    layer= takes a class or the name of a class, not 3
    """


class WalkError(Error, TypeError):
    """An object, or a part of it, that leafwise cannot process. It is also a TypeError.

    >>> import leafwise as lw
    >>> try:
    ...     lw.open(42)
    ... except lw.WalkError as error:
    ...     print(error)
    lw.open takes a path or a URL, not int; for an object in memory, use lw.tree
    """


class WriteError(Error, ValueError):
    """A value that cannot be written, such as one of another shape; nothing was changed. It is also a ValueError.

    >>> import torch, leafwise as lw
    >>> try:
    ...     lw.tree({"w": torch.zeros(2)})["w"].write(torch.ones(3))
    ... except lw.WriteError as error:
    ...     print(error)
    w: cannot write float32 of shape (3,) into float32 of shape (2,); nothing was changed
    """


class TieError(Error, ValueError):
    """A tie that cannot be made, kept or undone; nothing was changed. It is also a ValueError.

    >>> import torch, leafwise as lw
    >>> try:
    ...     lw.untie(torch.nn.Linear(4, 2), "weight")
    ... except lw.TieError as error:
    ...     print(error)
    cannot untie "weight": it is not tied to anything
    """


class TieWarning(UserWarning):
    """Warns that a tie was undone, or that it cannot be kept. It is a UserWarning.

    >>> import torch, warnings, leafwise as lw
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    >>> model = lw.tie(model, "1.weight", to="0.weight", keep="source")
    >>> model[1].weight = torch.nn.Parameter(torch.zeros(4, 4))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     t = lw.tree(model)
    >>> print(caught[0].message)
    declared tie undone: 1.weight is no longer 0.weight; to tie them again: ...
    """

    def __init__(self, message: str) -> None:
        super().__init__(_plain(message))


class RuleError(Error, ValueError):
    """A rule that matches nothing, contradicts another rule, or cannot be applied; nothing was changed.

    It is also a ValueError.

    >>> import torch, leafwise as lw
    >>> try:
    ...     lw.groups(torch.nn.Linear(4, 2), [lw.Rule("LayerNorm.*", weight_decay=0.0)])
    ... except lw.RuleError as error:
    ...     print(error)
    Rule('LayerNorm.*', weight_decay=0) matches nothing: no leaf matches 'LayerNorm.*'
    """


class NonFiniteError(Error, ArithmeticError):
    """Gradients that are NaN or infinite; nothing was changed. `paths` lists their leaves.

    It is also an ArithmeticError.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Linear(2, 1)
    >>> net(torch.tensor([[float("nan"), 0.0]])).sum().backward()
    >>> try:
    ...     lw.clip(net, 1.0)
    ... except lw.NonFiniteError as error:
    ...     print(error.paths)
    ('weight',)
    """

    def __init__(self, message: str, paths: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.paths = paths


class RankError(Error, RuntimeError):
    """Processes that share a model but do different things, or a process that cannot be reached.

    `rank` is the process that differs from the others, and `path` is the first leaf at which it does; None and empty if
    that is not known. It is also a RuntimeError.

    >>> import leafwise as lw
    >>> error = lw.RankError("lw.stats stopped at 0.weight: rank 1 has 4×4, but rank 0 has 8×4", 1, "0.weight")
    >>> error.rank, error.path
    (1, '0.weight')
    """

    def __init__(self, message: str, rank: int | None = None, path: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.path = path


class FileError(Error, ValueError):
    """A file that is damaged or not supported, or that cannot be read or written. It is also a ValueError.

    >>> import leafwise as lw
    >>> try:
    ...     lw.open("nowhere.safetensors")
    ... except lw.FileError as error:
    ...     print(error)
    cannot open 'nowhere.safetensors': ...
    """


class ChecksumError(FileError):
    """A file that does not match its checksums, so it was damaged or changed. `leaves` lists the damaged leaves.

    >>> import tempfile, torch, leafwise as lw
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = lw.save({"weight": torch.zeros(2)}, f"{folder}/model.safetensors")
    ...     with open(path, "r+b") as file:
    ...         _ = file.seek(-1, 2), file.write(b"?")
    ...     try:
    ...         lw.verify(path)
    ...     except lw.ChecksumError as error:
    ...         print(error.leaves)
    ('weight',)
    """

    def __init__(self, message: str, leaves: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.leaves = leaves


class LoadError(Error, ValueError):
    """A checkpoint that does not fit the model; nothing was changed. The message lists every problem, one per line.

    `plan` is the plan of the load (see `lw.plan`), with the details. It is None if the error comes from another
    process. This is also a ValueError.

    >>> import torch, leafwise as lw
    >>> try:
    ...     lw.load(torch.nn.Linear(4, 2), {"weight": torch.zeros(2, 4)})
    ... except lw.LoadError as error:
    ...     print(error)
    cannot load (1 missing); nothing was changed
      missing: bias (2 float32) is in the model but not in the source
      to load everything else, pass allow={"missing"}
    """

    def __init__(self, message: str | Sequence[str], plan: object = None) -> None:
        super().__init__()
        self.args = ("\n".join(map(_plain, [message] if isinstance(message, str) else message)),)
        self.plan = plan

    def _kept(self) -> dict[str, object]:
        return {**vars(self), "plan": None}


class EditError(Error, ValueError):
    """An edit that cannot be made; nothing was written. The message lists the problems, one per line.

    `problems` lists all of them. It is also a ValueError.

    >>> import torch, leafwise as lw
    >>> try:
    ...     lw.edit({"weight": torch.zeros(2)}, "new.safetensors", drop="head.**", rename={"model": ""})
    ... except lw.EditError as error:
    ...     print(error)
    cannot write 'new.safetensors'; nothing was written
      drop= 'head.**' matches nothing in the source
      rename= 'model' matches no name that is written
    """

    def __init__(self, message: str | Sequence[str], problems: Sequence[str] = ()) -> None:
        super().__init__()
        self.args = ("\n".join(map(_plain, [message] if isinstance(message, str) else message)),)
        self.problems = tuple(problems)


class WorkerError(Error, RuntimeError):
    """A worker of an executor died, or cannot do its work. It is also a RuntimeError.

    >>> import concurrent.futures, leafwise as lw
    >>> print(lw.WorkerError("a worker ended unexpectedly"))
    a worker ended unexpectedly
    """


class Unsupported(Error, NotImplementedError):  # noqa: N818
    """An operation that a framework or a file format does not support. It is also a NotImplementedError.

    `home` is the framework or the format, and `capability` is the operation.

    >>> import leafwise as lw
    >>> print(lw.Unsupported("jax", "write", "arrays are immutable"))
    jax cannot write: arrays are immutable
    """

    def __init__(self, home: str, capability: str, why: str = "") -> None:
        super().__init__(f"{home} cannot {capability}" + (f": {why}" if why else ""))
        self.home = home
        self.capability = capability


# -- what is not raised ----------------------------------------------------------------------------------------


def warn(warning: Warning | str) -> None:
    """Issues a warning at the line that called leafwise, however many frames of leafwise are in between."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "leafwise":
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


@contextmanager
def memory_explained(verb: str) -> Iterator[None]:
    """Turns a lack of memory, before anything is changed, into an error that says so."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):  # that of PyTorch on a CPU
            raise
        raise Error(f"cannot {verb}: there is not enough memory; nothing was changed") from error


@contextmanager
def interruption_explained(verb: str, repair: str) -> Iterator[None]:
    """Adds to Ctrl-C, and to other exceptions that are not errors, that the model is partly changed."""
    explanation = f"interrupted while lw.{verb} was writing: the model is partly changed; {repair} before you use it"
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(explanation) from stop
    except BaseException as stop:
        if not isinstance(stop, Exception):
            stop.add_note(explanation)
        raise
