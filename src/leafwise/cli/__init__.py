"""The command line: one short file for each verb."""

import argparse
import gc
import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, cast

from leafwise import __version__
from leafwise.cli.output import caution, complain, print_json
from leafwise.core.path import escape, without_secrets
from leafwise.errors import Error

# In the order of `leafwise --help`. Each is a module of this package, imported only when its verb is called.
VERBS = [
    "show", "read", "stats", "check", "diff", "image", "view", "ties", "groups", "plan", "verify", "edit", "convert",
    "tour", "completion",
]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `leafwise` and returns the exit status."""
    # A character that the locale cannot encode is written as an escape sequence instead of raising an error.
    before = [(stream, getattr(stream, "errors", None)) for stream in (sys.stdout, sys.stderr)]
    for stream, _ in before:
        _set_errors(stream, "backslashreplace")
    try:
        return _run(arguments)
    finally:
        for stream, errors in before:
            _set_errors(stream, errors)


def _run(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["__complete"]:
        from leafwise.cli.candidates import complete

        return complete(words[1:])
    words = _with_verb(words)
    # Imports only the verb that is called: importing all of them takes time.
    options = _parsed(parser_of([verb for verb in VERBS if words[0] == verb] or VERBS).main, words)
    # A listing makes hundreds of thousands of objects that stay alive: collecting garbage would only waste time.
    collecting = gc.isenabled()
    gc.disable()
    shown: Any = warnings.showwarning
    warnings.showwarning = cast(Any, _warn)
    on_sigterm = _set_on_sigterm(_terminated)
    try:
        status = _with_limits(options)
        if sys.stdout is not None:  # it is None if it was closed before Python started
            sys.stdout.flush()
        return status
    except Error as error:
        message = _with_flags(str(error), options)
        complain(message)
        if getattr(options, "json", False):
            print_json({"error": escape(without_secrets(message))})  # so that a script always gets JSON
        return int(getattr(options, "trouble", 1))  # verbs for which 1 is a result use another status
    except BrokenPipeError:
        # `leafwise show … | head` is not a failure. Nothing more can be written, not even when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except OSError as error:
        if error.filename is not None:
            return _unexpected(error, options)
        # Standard output failed. Writing the rest of the buffer when Python exits would fail again.
        complain(f"cannot write to standard output: {error.strerror or error}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(getattr(options, "trouble", 1))
    except Exception as error:
        return _unexpected(error, options)
    finally:
        _set_on_sigterm(on_sigterm)
        warnings.showwarning = shown
        if collecting:
            gc.enable()
        else:
            gc.disable()  # a verb may have switched it on


class Parsers(NamedTuple):
    """The parser of the command line, and the parsers of verbs."""

    main: argparse.ArgumentParser
    verbs: dict[str, argparse.ArgumentParser]


def parser_of(verbs: list[str]) -> Parsers:
    """The parser for some verbs."""
    parser = _Parser(
        prog="leafwise",
        description="Parameter management for neural networks: inspect, iterate, share, save.",
        epilog="leafwise FILE is short for leafwise show FILE.",
    )
    parser.add_argument("--version", action="version", version=f"leafwise {__version__}")
    # With `prog`, argparse need not format the usage, for which it would import more modules.
    parsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True, prog=parser.prog)
    for verb in verbs:
        import_module(f"leafwise.cli.{verb}").add_to(parsers)
        if verb not in ("tour", "completion"):  # which open no file
            _add_limits(parsers.choices[verb])
    return Parsers(parser, dict(parsers.choices))


def _with_verb(words: list[str]) -> list[str]:
    """The arguments, with `show` before a TARGET that comes without a verb. A verb always wins: a file of the same name
    is written ./stats."""
    if not words:
        return ["--help"]
    first = words[0]
    if first in VERBS or first in ("-h", "--help", "--version"):
        return words
    from leafwise.cli.target import may_be

    if first.startswith("-"):
        if any(word in VERBS for word in words):
            parser_of(VERBS).main.error(f"{first} is not an option here; options follow the verb")
    elif not may_be(first):
        from difflib import get_close_matches

        near = get_close_matches(first, VERBS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        reason = f"there is no verb {first!r}, and no file of that name; {hint}verbs: {', '.join(VERBS)}"
        parser_of(VERBS).main.error(reason)
    return ["show", *words]


def _parsed(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Parses the arguments. Words that find leaves may also follow options, which argparse does not support."""
    options, rest = parser.parse_known_args(words)
    if rest and (not hasattr(options, "words") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.words = [*options.words, *rest]
    return options


def _with_flags(message: str, options: argparse.Namespace) -> str:
    """A message of the API with arguments spelled as options of the command line, if the verb has such an option."""
    names = {**{name: name for name in vars(options)}, **({"decay": "layer-decay"} if "layer_decay" in options else {})}

    def flag(match: re.Match[str]) -> str:
        if match[1] not in names:
            return match[0]
        value = match[2].strip("{}'") if match[2].startswith("{") else match[2]  # {'objects'} is one word
        return f"--{names[match[1]].replace('_', '-')}{' ' * bool(value)}{value}"

    return re.sub(r"(?<![\w.(])([a-z_]+)=((?=[:\s])|'[^']*'|\{'\w+'\})", flag, message)


class _Parser(argparse.ArgumentParser):
    """Escapes its error messages, because they may contain names of files."""

    def error(self, message: str) -> NoReturn:
        super().error(escape(without_secrets(message)))


def _add_limits(parser: argparse.ArgumentParser) -> None:
    trusted = parser.add_argument_group("limits (raise them for a file that you trust)")
    for option, text in (
        ("--max-bytes", "refuse a file if listing it needs more memory than this"),
        ("--max-steps", "refuse a file if listing it takes more steps than this"),
        ("--max-download", "refuse a file with more bytes than this if its web server can only send whole files"),
    ):
        trusted.add_argument(option, type=int, metavar="N", help=text)
    trusted.add_argument(
        "--strict", action="store_true", help="refuse a file with objects of classes that leafwise does not load"
    )


def _with_limits(options: argparse.Namespace) -> int:
    strict = bool(getattr(options, "strict", False))
    given = [getattr(options, name, None) for name in ("max_bytes", "max_steps", "max_download")]
    if given == [None, None, None] and not strict:
        return int(options.run(options))
    from leafwise.files.limits import allowing

    max_bytes, max_steps, max_download = given
    with allowing(max_bytes, max_steps, max_download, strict):
        return int(options.run(options))


def _terminated(*_: object) -> NoReturn:
    """Ends the program like an error, so that unfinished files are removed. Schedulers send SIGTERM before SIGKILL."""
    raise SystemExit(143)


def _set_on_sigterm(handler: Any) -> Any:
    """Sets what SIGTERM does, and returns what it did before. A handler that was not set by Python is None, and stays,
    because it could not be restored."""
    with suppress(ValueError):  # not in the main thread
        if handler is not None and signal.getsignal(signal.SIGTERM) is not None:
            return signal.signal(signal.SIGTERM, handler)
    return None


def _set_errors(stream: Any, errors: str | None) -> None:
    with suppress(AttributeError, OSError, ValueError):  # it is not a text stream, or it is closed
        stream.reconfigure(errors=errors)


def _unexpected(error: Exception, options: argparse.Namespace) -> int:
    """Lets Python show the traceback, unless the verb uses exit status 1 for a result."""
    trouble = int(getattr(options, "trouble", 1))
    if trouble == 1:
        raise error
    summary = f"{type(error).__name__}: {error}".splitlines()[0]
    complain(f"unexpected error: {summary}")
    return trouble


def _warn(message: Warning | str, *_: object) -> None:
    """Prints a warning like an error, without the line of Python code that raised it."""
    caution(str(message))
