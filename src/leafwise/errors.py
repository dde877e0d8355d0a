"""The exceptions that leafwise raises.

```
Error
├── PathError    (KeyError)             there is nothing at that path
├── QueryError   (ValueError)           a query that cannot be parsed
├── ArgumentError (TypeError)           an argument that was renamed, or that a function does not have
├── WalkError    (TypeError)            an object, or something inside one, that cannot be walked
├── WriteError   (ValueError)           a value that does not fit its leaf; nothing was changed
├── TieError     (ValueError)           a tie that cannot be made or kept; nothing was changed
├── RuleError    (ValueError)           a rule that matches nothing, or contradicts another rule
├── NonFiniteError (ArithmeticError)    gradients that are not finite; nothing was changed
├── LoadError    (ValueError)           a load with missing, unexpected or wrong values; nothing was changed
├── FileError    (ValueError)           a file that is damaged, not supported, or cannot be written
│   └── ChecksumError                   a file whose bytes have changed since it was written
└── Unsupported  (NotImplementedError)  an operation that a framework or format does not support
```

`TieWarning`, a UserWarning, reports a tie that was undone.

Each is also the built-in exception that a caller would expect, so `except KeyError` works, too. A message names the
path, both sides of a mismatch, and what to do. It is plain text on one line, whatever names it contains, and does not
show secrets in URLs (see `printable`).
"""

from collections.abc import Sequence

from leafwise.printable import escape, without_secrets


class Error(Exception):
    """The base class of all exceptions of leafwise.

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
    """There is nothing at that path."""


class QueryError(Error, ValueError):
    """A query that cannot be parsed."""


class ArgumentError(Error, TypeError):
    """An argument that was renamed or removed; the message gives the new spelling."""


class WalkError(Error, TypeError):
    """An object, or something inside one, that cannot be walked."""


class WriteError(Error, ValueError):
    """A value that does not fit its leaf; nothing was changed."""


class TieError(Error, ValueError):
    """A tie that cannot be made or kept; nothing was changed."""


class TieWarning(UserWarning):
    """A declared tie was undone."""

    def __init__(self, message: str) -> None:
        super().__init__(_plain(message))


class RuleError(Error, ValueError):
    """A rule that matches nothing, contradicts another rule, or cannot be followed; nothing was changed."""


class NonFiniteError(Error, ArithmeticError):
    """Gradients that are not finite; nothing was changed. `paths` are the leaves that have them."""

    def __init__(self, message: str, paths: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.paths = paths


class FileError(Error, ValueError):
    """A file that is damaged, not supported, or cannot be written."""


class ChecksumError(FileError):
    """A file whose bytes have changed since it was written. `leaves` are the paths of the damaged leaves."""

    def __init__(self, message: str, leaves: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.leaves = leaves


class LoadError(Error, ValueError):
    """A load with missing, unexpected or wrong values; nothing was changed. `plan` has the details, leaf by leaf. It
    refers to the model, and is None if the error comes from another process. The message may have several lines."""

    def __init__(self, message: str | Sequence[str], plan: object = None) -> None:
        super().__init__()
        self.args = ("\n".join(map(_plain, [message] if isinstance(message, str) else message)),)
        self.plan = plan

    def _kept(self) -> dict[str, object]:
        return {**vars(self), "plan": None}


class Unsupported(Error, NotImplementedError):  # noqa: N818
    """An operation that a framework or a file format does not support.

    >>> from leafwise.errors import Unsupported
    >>> print(Unsupported("jax", "write", "arrays are immutable"))
    jax cannot write: arrays are immutable
    """

    def __init__(self, home: str, capability: str, why: str = "") -> None:
        super().__init__(f"{home} cannot {capability}" + (f": {why}" if why else ""))
        self.home = home
        self.capability = capability
