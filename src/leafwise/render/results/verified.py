"""The result of `lw.verify`, as a few lines and as plain data."""

from typing import Any

from leafwise.checkpoint.verifying import Verified
from leafwise.core.path import plural
from leafwise.core.results.outline import Doc, Span
from leafwise.render.phrases import bytes_text


def to_doc(verified: Verified, *, full: bool = False) -> Doc:
    """What was checked, and what could not be."""
    lines: list[tuple[Span, ...]] = []
    formats = f" ({', '.join(verified.without_checksums)})" if verified.without_checksums else ""
    if verified.leaves or not verified.unchecked:
        leaves = plural(verified.leaves, "leaf", "leaves")
        shards = f", {plural(verified.bound, 'shard', 'shards')} bound to the index" if verified.bound else ""
        lines.append((Span(f"{leaves}, {bytes_text(verified.bytes) or '0 B'}{shards}: every checksum matches"),))
        if verified.unchecked:
            unchecked = plural(verified.unchecked, "leaf has", "leaves have")
            lines.append((Span(f"{unchecked} no checksum{formats}", "warn"),))
    else:
        unchecked = plural(verified.unchecked, "leaf", "leaves")
        words = f"{unchecked} without checksums{formats}: nothing could be verified; lw.save writes checksums"
        lines.append((Span(words, "warn"),))
    if verified.unbound:
        unbound = plural(verified.unbound, "shard is", "shards are")
        lines.append((Span(f"{unbound} not bound to an index, and may be from another save", "warn"),))
    return Doc([], lines)


def warnings_of(verified: Verified) -> list[str]:
    """The lines about what could not be checked."""
    return [line[0].text for line in to_doc(verified).footer if line[0].style == "warn"]


def to_json(verified: Verified) -> dict[str, Any]:
    return {"ok": verified.ok, **verified._asdict()}
