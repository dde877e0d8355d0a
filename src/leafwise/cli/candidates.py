"""What can follow on a command line, for the completion of shells: `leafwise __complete WORD …`.

The last word is the one to complete; it may be empty. The first line of the output says what else the shell may do:
`files` to offer the names of files, `nospace` to add no space after a candidate, `-` for neither. Then each line is a
candidate. Only headers of local files are read, nothing is imported or downloaded, and nothing is ever an error. A
shell inserts candidates into a command line, so names from files are left out unless they are plain.
"""

import argparse
import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*", re.ASCII)
_MOST_CANDIDATES = 1_000  # candidates
_PATHS = {"words", "path"}  # arguments that are paths in the first TARGET; so are options whose value is a QUERY
_FILES = {"target", "a", "b", "source", "sources", "destination", "file", "against", "output", "out"}


class Candidates(NamedTuple):
    """What can follow, and what else the shell may do."""

    words: list[str]
    files: bool = False
    nospace: bool = False

    def lines(self) -> list[str]:
        hint = "files" if self.files else "nospace" if self.nospace else "-"
        return [hint, *self.words[:_MOST_CANDIDATES]]


def complete(words: list[str]) -> int:
    """Prints what can follow. Errors are silent, because the user is still typing."""
    try:
        lines = candidates(words or [""]).lines()
    except (Exception, SystemExit):
        lines = ["-"]
    with suppress(OSError):  # the shell does not wait any longer
        os.write(1, "".join(f"{line}\n" for line in lines).encode())
    return 0


def candidates(words: list[str]) -> Candidates:
    """What the last word can become."""
    from leafwise.cli import VERBS

    *before, current = _joined(words)
    before = list(map(_unquoted, before))
    if not before:
        options = ["--help", "--version"] if current.startswith("-") else []
        return Candidates(_beginning([*VERBS, *options], current), files=not current.startswith("-"))
    verb, given = (before[0], before[1:]) if before[0] in VERBS else ("show", before)
    return _of_verb(verb, given, current)


def _joined(words: list[str]) -> list[str]:
    """The words without a `=` between an option and its value, at which bash splits."""
    return [word for place, word in enumerate(words) if word != "=" or place == len(words) - 1] or [""]


def _unquoted(word: str) -> str:
    """A word as the shell would pass it, as far as that is possible without running anything."""
    try:
        [plain] = shlex.split(word)
    except ValueError:
        return word
    return os.path.expanduser(plain) if word.startswith("~") else plain


def _of_verb(verb: str, given: list[str], current: str) -> Candidates:
    from leafwise.cli import parser_of

    actions = parser_of([verb]).verbs[verb]._actions
    by_option = {option: action for action in actions for option in action.option_strings}
    positionals = [action for action in actions if not action.option_strings]
    targets: list[str] = []  # the positional words before the current one
    waiting: argparse.Action | None = None  # an option that still needs its value
    for word in given:
        if waiting is not None:
            waiting = None
        elif word.startswith("-") and len(word) > 1:
            action = by_option.get(word.partition("=")[0])
            waiting = action if action is not None and action.nargs != 0 and "=" not in word else None
        else:
            targets.append(word)
    option, equals, value = current.partition("=")
    if waiting is not None:
        return _values(waiting, targets, current.removeprefix("="))
    if equals and option in by_option:
        values = _values(by_option[option], targets, value)
        return values._replace(words=[f"{option}={word}" for word in values.words], files=False)
    if current.startswith("-"):
        shown = [option for option, action in by_option.items() if action.help != argparse.SUPPRESS]
        return Candidates(_beginning(shown, current))
    if not positionals:
        return Candidates([])
    place = min(len(targets), len(positionals) - 1)
    if len(targets) >= len(positionals) and positionals[-1].nargs not in ("*", "+"):
        return Candidates([])
    return _values(positionals[place], targets, current)


def _values(action: argparse.Action, targets: list[str], current: str) -> Candidates:
    """The values of an option or of a positional argument."""
    if action.choices:
        return Candidates(_beginning(map(str, action.choices), current))
    if action.dest == "dtype":
        from leafwise.core.dtypes import DTYPES, is_float

        return Candidates(_beginning([name for name in DTYPES if is_float(name)], current))
    if targets and (action.dest in _PATHS or str(action.metavar).startswith("QUERY")):
        return _paths(targets[0], current, any_name=action.dest == "words")
    return Candidates([], files=action.dest in _FILES)


def _paths(target: str, current: str, any_name: bool) -> Candidates:
    """Paths in a checkpoint that begin with the current word: those of the same level, and those below a node that is
    complete. With `any_name`, also names of nodes and leaves anywhere, because a word finds them."""
    from leafwise.core.tree import tree
    from leafwise.files.sources.remote import is_url

    if is_url(target) or not os.path.exists(target):
        return Candidates([])
    with tree(os.path.abspath(target)) as whole:
        columns = whole.columns
        nodes, leaves = columns.node_keys(), columns.keys(whole.rows)
        level = current.count(".") + 1
        paths = [*(path for path in nodes.values() if path), *leaves]
        near = [path for path in paths if path.startswith(current) and path.count(".") < level]
        near += [path for path in paths if path.startswith(f"{current}.") and path.count(".") == level]
        if any_name and current and "." not in current:
            near += [name for name in (*columns.node_names, *columns.row_names) if name.startswith(current)]
        words = [path for path in dict.fromkeys(near) if _PLAIN.fullmatch(path)]
        # A node may be followed by a dot and a name below it.
        return Candidates(words, nospace=not set(words) <= set(leaves))


def _beginning(words: Iterable[str], current: str) -> list[str]:
    return [word for word in words if word.startswith(current)]
