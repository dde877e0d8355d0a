"""Renames that a plan or a diff applied, would apply, or considers possible."""

from leafwise.core.pairing.name_groups import RenameGroup, grouped_renames
from leafwise.core.pairing.proposals import Proposal
from leafwise.core.results.outline import Span

_WIDTH = 80


def proposal_lines(applied: list[Proposal], proposals: list[Proposal], limit: int | None) -> list[tuple[Span, ...]]:
    """Renames that were applied, that would be applied, and that are possible; and the option that applies them."""
    certain = [proposal for proposal in proposals if proposal.certain]
    lines = _certain_lines("renamed", applied, limit) + _certain_lines("would rename", certain, limit)
    groups: dict[object, list[Proposal]] = {}
    for proposal in proposals:
        if not proposal.certain:
            groups.setdefault((proposal.sources, proposal.targets), []).append(proposal)
    for group in list(groups.values())[:limit]:
        lines += _group_lines(group, limit)
    lines += _left_out(len(groups), limit, "possible rename")
    if certain:
        lines.append('rename="auto" (--auto) applies the renames marked "would rename"')
    if groups:
        lines.append('rename="auto" skips possible renames: pass the right ones as rename= (--rename)')
    last = len(lines) - bool(certain) - bool(groups)
    return [(Span(line, "tie" if number < last else "dim"),) for number, line in enumerate(lines)]


def _left_out(count: int, limit: int | None, label: str) -> list[str]:
    return [f"… and {count - limit:,} more ({label})"] if limit is not None and count > limit else []


def _certain_lines(label: str, renames: list[Proposal], limit: int | None) -> list[str]:
    groups = _certain_groups(renames, each=limit is None)
    lines: list[str] = []
    for reason, group in groups[:limit]:
        count = f"{len(group.pairs):,} leaves, " if len(group.pairs) > 1 else ""
        lines += _rename_lines(f"{label}: {group.old}", f"→ {group.new}", f" ({count}{reason})")
    left_out = 0 if limit is None else sum(len(group.pairs) for _, group in groups[limit:])
    return [*lines, f"… and {left_out:,} more ({label})"] if left_out else lines


def _certain_groups(renames: list[Proposal], each: bool) -> list[tuple[str, RenameGroup]]:
    """Renames that change names in the same way, for the same reason, as one; or each pair by itself."""
    by_reason: dict[str, list[tuple[str, str]]] = {}
    for proposal in renames:
        by_reason.setdefault(proposal.reason, []).extend(proposal.pairs)
    if each:
        return [(reason, RenameGroup(*pair, [pair])) for reason, pairs in by_reason.items() for pair in pairs]
    return [(reason, group) for reason, pairs in by_reason.items() for group in grouped_renames(pairs)]


def _rename_lines(start: str, middle: str, end: str) -> list[str]:
    """A rename in one line, or in two or three if one would be too long."""
    if len(start) + 1 + len(middle) + len(end) <= _WIDTH:
        return [f"{start} {middle}{end}"]
    return [start, f"  {middle}{end}"] if 2 + len(middle) + len(end) <= _WIDTH else [start, f"  {middle}", f" {end}"]


def _group_lines(group: list[Proposal], limit: int | None) -> list[str]:
    """Possible renames among leaves of one shape, and further names with that shape."""
    lines: list[str] = []
    for proposal in group[:limit]:
        old, new = proposal.pairs[0]
        count = f" and {len(proposal.pairs) - 1:,} like it" if len(proposal.pairs) > 1 else ""
        lines += _rename_lines(f"possible rename: {old}", f"→ {new}", f"{count} ({proposal.reason})")
    lines += _left_out(len(group), limit, "possible rename")
    for arrow, names, side in (("→", group[0].targets, 1), ("←", group[0].sources, 0)):
        paired = {proposal.pairs[0][side] for proposal in group}
        unpaired = [name for name in names if name not in paired]
        lines += [f"  or {arrow} {name}" for name in unpaired[:limit]]
        lines += _left_out(len(unpaired), limit, f"or {arrow}")
    if len(group) > 1:
        lines.append(f"  these {len(group):,} have the same shape, so they may be swapped")
    return lines
