"""The exceptions of leafwise, in one small tree.

```
Error
├── PathError    (KeyError)             nothing lives at that path
├── QueryError   (ValueError)           a query that cannot be read
├── ArgumentError (TypeError)           an argument that has another name now
├── WalkError    (TypeError)            an object, or something inside one, that cannot be walked
├── WriteError   (ValueError)           a value that does not fit its leaf; nothing was changed
├── TieError     (ValueError)           a tie that cannot be made or kept; nothing was changed
├── RuleError    (ValueError)           a rule that matches nothing, or that another contradicts
├── NonFiniteError (ArithmeticError)    gradients that are not finite; nothing was changed
├── LoadError    (ValueError)           a load that would leave something out or get it wrong; nothing was changed
├── FileError    (ValueError)           a file that is not what it should be, or cannot be written
│   └── ChecksumError                   a file whose bytes are not those that were written
└── Unsupported  (NotImplementedError)  a home that lacks what a verb needs
```

`TieWarning`, a UserWarning, tells of a tie that came undone.

Each is also the built-in exception that a caller would expect, so `except KeyError` goes on working.
Messages name the path, both sides and the repair. Whatever names they hold, they are plain text on one line, without
the secrets of URLs (see `printable`).
"""

from collections.abc import Sequence

from leafwise.printable import escape, without_secrets


class Error(Exception):
    """The root of everything leafwise raises on purpose.

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
        # KeyError would show the repr of its message, quotes and escapes included.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[object, ...]:
        # By the message, and not by calling the class: a process pool hangs on an error that does not come through.
        return _made_again, (type(self), self.args, self._kept())

    def _kept(self) -> dict[str, object]:
        return dict(vars(self))


def _plain(text: str) -> str:
    return escape(without_secrets(text))


def _made_again(cls: type[Error], args: tuple[object, ...], kept: dict[str, object]) -> Error:
    """An error out of a pickle."""
    error = cls.__new__(cls, *args)
    error.args = args
    vars(error).update(kept)
    return error


class PathError(Error, KeyError):
    """Nothing lives at that path."""


class QueryError(Error, ValueError):
    """A query that cannot be read."""


class ArgumentError(Error, TypeError):
    """An argument that was renamed or removed; the message gives the new spelling."""


class WalkError(Error, TypeError):
    """An object, or something inside one, that cannot be walked."""


class WriteError(Error, ValueError):
    """A value that does not fit the leaf it was meant for; nothing was changed."""


class TieError(Error, ValueError):
    """A tie that cannot be made or kept; nothing was changed."""


class TieWarning(UserWarning):
    """A tie that was declared is gone."""

    def __init__(self, message: str) -> None:
        super().__init__(_plain(message))


class RuleError(Error, ValueError):
    """A rule that matches nothing, that another contradicts, or that asks for what cannot be; nothing was changed."""


class NonFiniteError(Error, ArithmeticError):
    """Gradients that are not finite; nothing was changed. `paths` says whose."""

    def __init__(self, message: str, paths: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.paths = paths


class FileError(Error, ValueError):
    """A file that is not what it should be."""


class ChecksumError(FileError):
    """A file whose bytes are not those that were written. `leaves` are the paths of what is damaged."""

    def __init__(self, message: str, leaves: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.leaves = leaves


class LoadError(Error, ValueError):
    """A load that would leave something out, or get it wrong; nothing was changed. `plan` says what, leaf by leaf; it
    refers to the model, and is None in a copy from another process. A message of several lines is given as such."""

    def __init__(self, message: str | Sequence[str], plan: object = None) -> None:
        super().__init__()
        self.args = ("\n".join(map(_plain, [message] if isinstance(message, str) else message)),)
        self.plan = plan

    def _kept(self) -> dict[str, object]:
        return {**vars(self), "plan": None}


class Unsupported(Error, NotImplementedError):  # noqa: N818
    """A home that lacks a capability.

    >>> from leafwise.errors import Unsupported
    >>> print(Unsupported("jax", "write", "arrays are immutable"))
    jax cannot write: arrays are immutable
    """

    def __init__(self, home: str, capability: str, why: str = "") -> None:
        super().__init__(f"{home} cannot {capability}" + (f": {why}" if why else ""))
        self.home = home
        self.capability = capability
