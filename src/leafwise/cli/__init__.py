"""The command line: one short file a verb."""

import argparse
import gc
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn, cast

from leafwise import __version__
from leafwise.cli.output import complain
from leafwise.core.path import escape, without_secrets
from leafwise.errors import Error

# In the order of `leafwise --help`; each is a module of this package, which is imported when the verb is called.
VERBS = ["show", "read", "stats", "check", "diff", "image", "ties", "groups", "plan", "verify", "convert", "tour"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `leafwise`; returns the exit status."""
    # A character that the locale cannot write is spelled out, and no reason to stop.
    before = [(stream, getattr(stream, "errors", None)) for stream in (sys.stdout, sys.stderr)]
    for stream, _ in before:
        _set_errors(stream, "backslashreplace")
    try:
        return _run(arguments)
    finally:
        for stream, errors in before:
            _set_errors(stream, errors)


def _run(arguments: Sequence[str] | None) -> int:
    parser = _Parser(
        prog="leafwise",
        description="Parameter management for neural networks: inspect, iterate, share, save.",
    )
    parser.add_argument("--version", action="version", version=f"leafwise {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    words = sys.argv[1:] if arguments is None else arguments
    # Only the verb that is called, without the cost of importing the others.
    wanted = [verb for verb in VERBS if words and words[0] == verb] or VERBS
    for verb in wanted:
        import_module(f"leafwise.cli.{verb}").add_to(verbs)
        _add_limits(verbs.choices[verb])
    options = parser.parse_args(arguments)
    # A listing makes hundreds of thousands of objects that all stay: to look for cycles among them is time lost.
    collecting = gc.isenabled()
    gc.disable()
    shown: Any = warnings.showwarning
    warnings.showwarning = cast(Any, _warn)
    try:
        status = _with_limits(options)
        if sys.stdout is not None:  # as where it was closed before
            sys.stdout.flush()
        return status
    except Error as error:
        complain(str(error))
        return int(getattr(options, "trouble", 1))  # a verb whose 1 is an answer has another
    except BrokenPipeError:
        # `leafwise show … | head` is not a failure; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except OSError as error:
        if error.filename is not None:
            return _unexpected(error, options)
        # What was to be printed; to print the rest at exit would fail once more.
        complain(f"cannot write: {error.strerror or error}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(getattr(options, "trouble", 1))
    except Exception as error:
        return _unexpected(error, options)
    finally:
        warnings.showwarning = shown
        if collecting:
            gc.enable()


class _Parser(argparse.ArgumentParser):
    """Escapes what it says about arguments, since these may be names of files."""

    def error(self, message: str) -> NoReturn:
        super().error(escape(without_secrets(message)))


def _add_limits(parser: argparse.ArgumentParser) -> None:
    trusted = parser.add_argument_group("for files that you trust, and that are refused because they ask for much")
    trusted.add_argument("--max-bytes", type=int, metavar="N", help="the memory that listing a file may take")
    trusted.add_argument("--max-steps", type=int, metavar="N", help="the steps of work that listing a file may take")


def _with_limits(options: argparse.Namespace) -> int:
    if options.max_bytes is None and options.max_steps is None:
        status: int = options.run(options)
        return status
    from leafwise.files.limits import allowing

    with allowing(options.max_bytes, options.max_steps):
        return int(options.run(options))


def _set_errors(stream: Any, errors: str | None) -> None:
    with suppress(AttributeError, OSError, ValueError):  # not a text file, or closed
        stream.reconfigure(errors=errors)


def _unexpected(error: Exception, options: argparse.Namespace) -> int:
    """Lets Python show an unforeseen error; but a verb whose 1 is an answer must not exit with 1."""
    trouble = int(getattr(options, "trouble", 1))
    if trouble == 1:
        raise error
    summary = f"{type(error).__name__}: {error}".splitlines()[0]
    complain(f"unexpected trouble: {summary}")
    return trouble


def _warn(message: Warning | str, *_: object) -> None:
    """Prints a warning as errors are printed: in a shell, the line of the program is of no use."""
    complain(str(message))
