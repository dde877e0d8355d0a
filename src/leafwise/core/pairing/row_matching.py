"""Which leaf of one tree is which leaf of another: by name, by rename, by well-known prefixes.

Names are those of a state dict: joined by dots. Values are not read here.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from leafwise.core.pairing.families import common_end
from leafwise.errors import QueryError

Rename = Any  # {old: new}, [(pattern, replacement), …], a function from name to name, "auto", or None

# Entries that wrappers add to the names of the wrapped model, at the beginning or in the middle, and entries under
# which programs store a model in their checkpoints.
_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_PREFIXES = _WRAPPERS | {"model", "base_model", "state_dict", "model_state_dict"}


class Prefix(NamedTuple):
    """A well-known prefix that only the source or only the target has, and on how many names."""

    source: str
    target: str
    times: int

    def describe(self) -> str:
        """
        >>> Prefix("module.", "", 12).describe(), Prefix("", "model.", 1).describe()
        ('prefix "module." removed from 12 names', 'prefix "model." added to 1 name')
        """
        names = f"{self.times:,} name{'' if self.times == 1 else 's'}"
        if not self.target:
            return f'prefix "{self.source}" removed from {names}'
        if not self.source:
            return f'prefix "{self.target}" added to {names}'
        return f'prefix "{self.source}" replaced by "{self.target}" in {names}'


class Matching(NamedTuple):
    """Positions in the lists that were given: for each target its source; the names without a partner on either side;
    and the names that a rename left out."""

    sources: dict[int, int]
    targets_left: list[int]
    sources_left: list[int]
    left_out: list[int]
    prefixes: list[Prefix]
    idle: list[str]  # renames that match no name
    common_prefixes: tuple[str, str] = ("", "")  # the prefix to remove from all sources, and the one to add

    def joined(self, pairs: Mapping[int, int]) -> "Matching":
        """The same matching with further pairs, by target."""
        taken = set(pairs.values())
        return self._replace(
            sources={**self.sources, **pairs},
            targets_left=[target for target in self.targets_left if target not in pairs],
            sources_left=[source for source in self.sources_left if source not in taken],
        )


def match_names(targets: Sequence[str], sources: Sequence[str], rename: Rename = None) -> Matching:
    """Finds the source of each target.

    >>> matching = match_names(["0.weight", "0.bias"], ["module.0.weight", "module.0.bias", "extra"])
    >>> matching.sources, matching.sources_left, matching.prefixes[0].describe()
    ({0: 0, 1: 1}, [2], 'prefix "module." removed from 2 names')
    """
    if (rename is None or is_auto(rename)) and targets == sources and len(set(targets)) == len(targets):
        return Matching(dict(enumerate(range(len(targets)))), [], [], [], [], [])
    names, left_out, idle = _renamed(sources, rename)
    common, prefixes = _common_prefixes(targets, names)
    if common != ("", ""):
        names = {number: common[1] + name.removeprefix(common[0]) for number, name in names.items()}
    by_name = {name: number for number, name in names.items()}
    if len(by_name) < len(names):
        twice = next(name for name, times in Counter(names.values()).items() if times > 1)
        from_ = [sources[number] for number, name in names.items() if name == twice]
        both = " and ".join(map(repr, from_[:3]))
        raise QueryError(f"{both} would both become {twice!r}; give them different names in rename=")
    get = by_name.get
    matches = {target: source for target, name in enumerate(targets) if (source := get(name)) is not None}
    targets_left = [target for target in range(len(targets)) if target not in matches]
    taken = set(matches.values())
    sources_left = [source for source in names if source not in taken]
    if targets_left and sources_left:
        pairs, further = _by_prefix(targets, names, targets_left, sources_left)
        prefixes += further
    else:
        pairs = {}
    if not matches and not pairs:  # without any match, the well-known prefixes of all names
        common = _shared_prefixes(names.values())[-1], _shared_prefixes(targets)[-1]
    return Matching(matches, targets_left, sources_left, left_out, prefixes, idle, common).joined(pairs)


def match_keys(targets: Iterable[str], sources: Iterable[str]) -> dict[str, str]:
    """The source of each target, by their names.

    >>> match_keys(["step", "lr"], ["module.step", "module.epoch"])
    {'step': 'module.step'}
    """
    targets, sources = list(targets), list(sources)
    if not targets or not sources:
        return {}
    return {targets[target]: sources[source] for target, source in match_names(targets, sources).sources.items()}


def _renamed(sources: Sequence[str], rename: Rename) -> tuple[dict[int, str], list[int], list[str]]:
    """The new names of sources, by position; the sources that are left out; and the renames that match no name."""
    if rename is None or is_auto(rename):
        return dict(enumerate(sources)), [], []
    new_name = Renaming(rename)
    names: dict[int, str] = {}
    left_out = []
    for number, name in enumerate(sources):
        new = new_name(name)
        if new is None:
            left_out.append(number)
        else:
            names[number] = new
    return names, left_out, new_name.idle()


class Renaming:
    """The function of `rename=`. Calling it returns the new name, or None if the name is left out. Without a rename,
    and with `"auto"`, names stay as they are.

    >>> new_name = Renaming({"encoder": "enc", "head": None, "tail": "end"})
    >>> new_name("encoder.0.weight"), new_name("head.bias"), new_name("body"), new_name.idle()
    ('enc.0.weight', None, 'body', ['tail'])
    """

    def __init__(self, rename: Rename) -> None:
        self._new_name, self.idle = _rules_of(rename)  # `idle()` lists the rules that matched no name

    def __call__(self, name: str) -> str | None:
        try:
            new: Any = self._new_name(name)
        except QueryError:
            raise
        except Exception as error:
            raise QueryError(f"rename= raised {type(error).__name__}: {error} for {name!r}") from error
        if new is not None and not isinstance(new, str):
            raise QueryError(f"rename= returned {new!r} for {name!r}; it must return a name, or None to leave it out")
        return new


_Rules = tuple[Callable[[str], str | None], Callable[[], list[str]]]  # name → new name; unused rules


def is_auto(rename: Rename) -> bool:
    """Whether leafwise must find the renames."""
    return isinstance(rename, str) and rename == "auto"


def _rules_of(rename: Rename) -> _Rules:
    if rename is None or is_auto(rename):
        return lambda name: name, list
    if callable(rename):
        return rename, list
    if isinstance(rename, Mapping):
        return _mapped(rename)
    if isinstance(rename, Sequence) and not isinstance(rename, str):
        return _substituted(rename)
    raise QueryError(
        'rename= takes {"old": "new"}, [(pattern, replacement), …], a function from name to name, or "auto", '
        f"not {rename!r}"
    )


def _mapped(rename: Mapping[Any, Any]) -> _Rules:
    for old, new in rename.items():
        if not isinstance(old, str) or not (new is None or isinstance(new, str)):
            raise QueryError(f"rename= maps names to names, not {old!r} to {new!r}")
    used: set[str] = set()

    def new_name(name: str) -> str | None:
        prefix = name
        while prefix not in rename:  # the longest prefix of the name that is renamed
            prefix, dot, _ = prefix.rpartition(".")
            if not dot:
                return name
        used.add(prefix)
        new: str | None = rename[prefix]
        return None if new is None else (new + name[len(prefix) :]).lstrip(".")

    return new_name, lambda: [str(old) for old in rename if old not in used]


def _substituted(rename: Sequence[Any]) -> _Rules:
    rules: list[tuple[re.Pattern[str], str]] = []
    for rule in rename:
        try:
            pattern, replacement = rule
            rules.append((re.compile(pattern), replacement))
        except (TypeError, ValueError, re.error) as error:
            raise QueryError(
                f"rename= takes pairs of a regular expression and its replacement, not {rule!r}"
            ) from error
    used: set[int] = set()

    def new_name(name: str) -> str:
        for number, (pattern, replacement) in enumerate(rules):
            try:
                name, times = pattern.subn(replacement, name)
            except (re.error, IndexError, TypeError) as error:
                raise QueryError(f"cannot replace {pattern.pattern!r} by {replacement!r}: {error}") from error
            if times:
                used.add(number)
        return name

    return new_name, lambda: [pattern.pattern for number, (pattern, _) in enumerate(rules) if number not in used]


# -- prefixes ----------------------------------------------------------------------------------------------


def _common_prefixes(targets: Sequence[str], names: Mapping[int, str]) -> tuple[tuple[str, str], list[Prefix]]:
    """The prefix to remove from all sources, and the one to add, if more names match then. This must be decided before
    any name is matched: `model.x` may be one thing in the target and another in the source."""
    wanted = set(targets)
    best, matched = ("", ""), sum(name in wanted for name in names.values())
    if matched == len(wanted) or not wanted:
        return best, []
    most = matched
    for theirs in _shared_prefixes(names.values()):
        for ours in _shared_prefixes(targets):
            if theirs or ours:
                count = sum(name.startswith(theirs) and ours + name[len(theirs) :] in wanted for name in names.values())
                if count > most:
                    best, most = (theirs, ours), count
    return best, [] if most == matched else [Prefix(*best, most)]


def _shared_prefixes(names: Iterable[str]) -> list[str]:
    """The prefixes of well-known entries that all names have, the empty prefix first.

    >>> _shared_prefixes(["module.model.a", "module.model.b"]), _shared_prefixes(["model.a", "b"])
    (['', 'module.', 'module.model.'], [''])
    """
    prefixes = [""]
    first = next(iter(names := list(names)), "")
    for step in first.split(".")[:-1]:
        prefix = f"{prefixes[-1]}{step}."
        if step not in _PREFIXES or not all(name.startswith(prefix) for name in names):
            break
        prefixes.append(prefix)
    return prefixes


def _by_prefix(
    targets: Sequence[str], names: Mapping[int, str], targets_left: list[int], sources_left: list[int]
) -> tuple[dict[int, int], list[Prefix]]:
    """Pairs of remaining names that differ only by well-known entries, if there is only one such partner."""
    bare_targets = {target: _bare(targets[target]) for target in targets_left}
    bare_sources = {source: _bare(names[source]) for source in sources_left}
    times_targets = Counter(bare for _, bare in bare_targets.values())
    times_sources = Counter(bare for _, bare in bare_sources.values())
    by_bare = {bare: source for source, (_, bare) in bare_sources.items()}
    pairs: dict[int, int] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for target, (prefix, bare) in bare_targets.items():
        if times_targets[bare] == times_sources[bare] == 1:
            source = by_bare[bare]
            pairs[target] = source
            theirs = bare_sources[source][0]
            counts[_without_common_end(theirs, prefix)] += 1
    return pairs, [Prefix(theirs, ours, count) for (theirs, ours), count in counts.most_common()]


def _bare(name: str) -> tuple[str, str]:
    """The well-known entries of a name, at its beginning or in the middle, and the name without them.

    >>> _bare("module._orig_mod.layers.0.weight"), _bare("layers.0._orig_mod.weight"), _bare("model.weight")
    (('module._orig_mod.', 'layers.0.weight'), ('…_orig_mod.', 'layers.0.weight'), ('model.', 'weight'))
    """
    steps = name.split(".")
    first = 0
    while first < len(steps) - 1 and steps[first] in _PREFIXES:
        first += 1
    prefix = "".join(f"{step}." for step in steps[:first])
    inner = [step for step in steps[first:-1] if step in _WRAPPERS]
    prefix += "".join(f"…{step}." for step in inner)
    return prefix, ".".join([*(step for step in steps[first:-1] if step not in _WRAPPERS), steps[-1]])


def _without_common_end(a: str, b: str) -> tuple[str, str]:
    """Two prefixes without their common last entries.

    >>> _without_common_end("module.model.", "model.")
    ('module.', '')
    """
    steps, partner = a.split("."), b.split(".")
    end = common_end(steps, partner)  # at least 1, because nothing follows the last dot
    return ".".join([*steps[:-end], ""]), ".".join([*partner[:-end], ""])
