"""The result of `lw.ties`, as a table and as plain data."""

from typing import TYPE_CHECKING, Any

from leafwise.core.leaf import shape_text
from leafwise.core.path import listed, plural
from leafwise.core.results.outline import Doc, Line, Span
from leafwise.render.data import TableRows, shared_memory_json, undone_json
from leafwise.render.phrases import bytes_text
from leafwise.share.find import Ties, bytes_saved

if TYPE_CHECKING:
    from leafwise.core.leaf import Leaf
    from leafwise.core.memory.ops import Op

_MAX_LISTED = 20  # groups of equal but untied leaves that are shown


def to_doc(ties: Ties, *, full: bool = False) -> Doc:
    """One line per tied leaf, and below it its other names, each with the view that it is."""
    lines = []
    for tie in ties:
        leaf = tie.leaf
        cells = (Span(""), Span(shape_text(leaf.shape)), Span(leaf.dtype, "dim"), Span(bytes_text(leaf.nbytes), "dim"))
        lines.append(Line(0, (Span(str(leaf.path), "name"),), cells))
        for name, saved in zip(tie.names[1:], bytes_saved(ties.tree, tie), strict=True):
            cells = (Span(_op_text(name.op), "tie"), Span(""), Span(""), Span(""))
            note = (Span(f"saves {bytes_text(saved) or '0 B'}", "dim"),)
            lines.append(Line(1, (Span(str(name.path), "name"),), cells, note))
    columns = ("how", "shape", "dtype", "bytes")
    return Doc(lines, _footer(ties, full), right=frozenset({3}), drop=(2, 1), columns=columns)


def _op_text(op: "Op") -> str:
    return f"{op} {op.describe().strip()}".rstrip() if op != "same" else "same"


def _footer(ties: Ties, full: bool) -> list[tuple[Span, ...]]:
    names = sum(len(tie.names) for tie in ties)
    saved = bytes_text(ties.bytes_saved) or "0 B"
    words = f"{plural(len(ties), 'tie', 'ties')}, {names:,} names · {saved} saved" if len(ties) else "no ties"
    footer: list[tuple[Span, ...]] = [(Span(words),)]
    footer += [(Span(f"{undone}; {undone.repair()}", "warn"),) for undone in ties.undone]
    for shared in ties.shared_memory:
        footer.append((Span(f"{shared.reason}: {_listed(shared.leaves)}", "warn"),))
    if ties.equal_untied is not None:
        most = len(ties.equal_untied) if full else _MAX_LISTED
        notable = [equal for equal in ties.equal_untied if not equal.constant]
        for equal in notable[:most]:
            how = f" ({_op_text(equal.op)})" if equal.op != "same" else ""
            footer.append((Span(f"equal but untied{how}: {_listed(equal.leaves)}", "warn"),))
        if len(notable) > most:
            footer.append((Span(f"… and {len(notable) - most:,} more groups of equal untied leaves", "dim"),))
        constant = sum(len(equal.leaves) for equal in ties.equal_untied if equal.constant)
        if constant:
            footer.append((Span(f"{constant:,} leaves are equal because each is constant", "dim"),))
        if not ties.equal_untied:
            footer.append((Span("no untied leaves are equal", "dim"),))
    for held in ties.optimizer or ():
        footer.append((Span(f"optimizer: {held.message}", "warn"),))
    if ties.optimizer == []:
        footer.append((Span("the optimizer steps each of its leaves once, and all of them are in the model", "dim"),))
    return footer


def _listed(leaves: "tuple[Leaf, ...]") -> str:
    return listed([str(leaf.path) for leaf in leaves], 6)


def to_table(ties: Ties) -> TableRows:
    """A row for each further name of a tied leaf."""
    columns = ["name", "leaf", "op", "shape", "dtype", "bytes_saved"]
    rows = [
        (str(name.path), str(tie.leaf.path), _op_text(name.op), tie.leaf.shape, tie.leaf.dtype, saved)
        for tie in ties
        for name, saved in zip(tie.names[1:], bytes_saved(ties.tree, tie), strict=True)
    ]
    return TableRows(columns, [dict(zip(columns, row, strict=True)) for row in rows], "name")


def to_json(ties: Ties) -> dict[str, Any]:
    """Ties, undone ties, shared memory, and what `lw.ties` was asked to look for."""
    data: dict[str, Any] = {
        "ties": [
            {
                "leaf": str(tie.leaf.path),
                "op": str(tie.op),
                "names": [
                    {"path": str(name.path), "op": str(name.op)}
                    | ({"view": name.op.describe().strip()} if name.op != "same" else {})
                    for name in tie.names
                ],
                "shape": None if tie.leaf.shape is None else list(tie.leaf.shape),
                "dtype": tie.leaf.dtype,
                "bytes": tie.leaf.nbytes,
                "bytes_saved": sum(bytes_saved(ties.tree, tie)),
            }
            for tie in ties
        ],
        "bytes_saved": ties.bytes_saved,
        "undone": [undone_json(undone) for undone in ties.undone],
        "shared_memory": [shared_memory_json(shared) for shared in ties.shared_memory],
    }
    if ties.equal_untied is not None:
        data["equal_untied"] = [
            {"paths": [str(leaf.path) for leaf in equal.leaves], "op": str(equal.op), "constant": equal.constant}
            for equal in ties.equal_untied
        ]
    if ties.optimizer is not None:
        # The message already says the place.
        data["optimizer"] = [
            {key: value for key, value in held._asdict().items() if key != "place"} for held in ties.optimizer
        ]
    return data
