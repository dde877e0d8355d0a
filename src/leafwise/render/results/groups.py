"""The result of `lw.groups`, as a table and as plain data."""

import math
from typing import Any

from leafwise.core.pairing.name_groups import grouped
from leafwise.core.path import listed, plural
from leafwise.core.results.outline import Doc, Line, Span
from leafwise.iterate.groups import GroupAccount, Groups
from leafwise.iterate.rules import option_text
from leafwise.render.data import TableRows
from leafwise.render.phrases import SECTIONS

_DECAY = {True: "decayed", False: "not decayed", None: "with the optimizer's own weight decay"}


def to_doc(groups: Groups, *, full: bool = False) -> Doc:
    """One line per rule with what it matched, and one per group with its options."""
    lines = []
    if groups.rules:
        lines.append(Line(0, (Span("rules", "type"),), (Span("leaves", "dim"), Span("parameters", "dim"))))
    for rule in groups.rules:
        frozen = f"and {plural(rule.frozen, 'frozen leaf', 'frozen leaves')}" if rule.frozen else ""
        notes = [Span(frozen, "warn"), Span("; "), Span(rule.note, "dim")]
        note = tuple(notes) if frozen and rule.note else tuple(span for span in notes[::2] if span.text)
        lines.append(_line((rule.rule,), rule.leaves, rule.parameters, note))
    if groups.rules and groups.uncovered:
        note = (Span(_names(groups.uncovered, groups, full), "dim"),)
        lines.append(_line(("no rule",), len(groups.uncovered), groups.uncovered_parameters, note))
    lines.append(Line(0, (Span("groups", "type"),), (Span("leaves", "dim"), Span("parameters", "dim"))))
    for number, group in enumerate(groups.groups):
        note = (Span(_DECAY[group.decayed], "dim" if group.decayed is None else ""),)
        lines.append(_line((f"{number}  ", _options(group)), group.leaves, group.parameters, note))
    return Doc(lines, _footer(groups, full), right=frozenset({0, 1}), drop=(0,), columns=("leaves", "parameters"))


def _line(label: tuple[str, ...], leaves: int, parameters: int, note: tuple[Span, ...]) -> Line:
    cells = Span(f"{leaves:,}"), Span(f"{parameters:,}", "number")
    return Line(1, tuple(Span(words, "name") for words in label), cells, note, whole=True)


def _options(group: GroupAccount) -> str:
    options = [f"{name}={option_text(value)}" for name, value in group.options.items()]
    return ", ".join(options) or "the optimizer's defaults"


def _footer(groups: Groups, full: bool) -> list[tuple[Span, ...]]:
    counts = {True: [0, 0], False: [0, 0], None: [0, 0]}
    for group in groups.groups:
        counts[group.decayed][0] += group.leaves
        counts[group.decayed][1] += group.parameters
    leaves, parameters = map(sum, zip(*counts.values(), strict=True))
    parts = [_counted(leaves, parameters)]
    parts += [f"{count[1]:,} {_DECAY[decayed]}" for decayed, count in counts.items() if count[0]]
    footer: list[tuple[Span, ...]] = [(Span(" · ".join(parts)),)]
    if groups.frozen:
        frozen = _counted(len(groups.frozen), groups.frozen_parameters)
        footer.append((Span(f"frozen and left out: {frozen}: {_names(groups.frozen, groups, full)}", "warn"),))
    if groups.left_out:
        left_out = [f"{plural(count, 'leaf', 'leaves')} of {SECTIONS[name]}" for name, count in groups.left_out.items()]
        footer.append((Span(f"weights only; left out: {', '.join(left_out)}", "dim"),))
    return footer


def _names(names: list[str], groups: Groups, full: bool) -> str:
    """Names in a list: each, or one pattern for those that are similar."""
    if full:
        return listed(names, len(names))
    every_name = [name for group in groups for name in group["param_names"]] + groups.frozen
    patterns = [
        pattern if len(inside) == 1 else f"{pattern} ({len(inside):,} leaves)"
        for pattern, inside in grouped(names, every_name, whole=False)
    ]
    return listed(patterns)


def _counted(leaves: int, parameters: int) -> str:
    return f"{plural(leaves, 'leaf', 'leaves')}, {plural(parameters, 'parameter', 'parameters')}"


def to_table(groups: Groups) -> TableRows:
    """A row for each trainable leaf, with its group and the options it gets there."""
    names = {name: None for account in groups.groups for name in account.options}
    rows = [
        {"path": path, "group": number, **account.options}
        for number, (account, group) in enumerate(zip(groups.groups, groups, strict=True))
        for path in group["param_names"]
    ]
    return TableRows(["path", "group", *names], rows, "path")


def to_json(groups: Groups) -> dict[str, Any]:
    """The rules and groups as in the table, and the names in each group."""
    return {
        "rules": [{**rule._asdict(), "options": _plain(rule.options)} for rule in groups.rules],
        "groups": [
            {**account._asdict(), "options": _plain(account.options), "param_names": list(group["param_names"])}
            for account, group in zip(groups.groups, groups, strict=True)
        ],
        "uncovered": list(groups.uncovered),
        "frozen": list(groups.frozen),
        "left_out": groups.left_out,
    }


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Options for JSON; types that JSON lacks become text."""
    return {name: value if _is_plain(value) else option_text(value) for name, value in options.items()}


def _is_plain(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, str | int | bool | None)
