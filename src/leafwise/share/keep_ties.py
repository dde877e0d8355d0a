"""`lw.keep_ties` and `lw.release_ties`: make ties survive what would undo them, and stop that."""

from typing import Any, TypeVar, overload

from leafwise.core.capabilities.tying import Keep, Tying
from leafwise.core.home import capability_or_none
from leafwise.core.parts import check_not_gathered, node_numbers
from leafwise.core.path import listed
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import TieWarning, warn
from leafwise.share.places import check_keep, keep_leaf_ties, part_of, place_of, rows_to_keep

M = TypeVar("M")


@overload
def keep_ties(model: Tree, *, keep: "Keep | None" = None) -> Any: ...
@overload
def keep_ties(model: M, *, keep: "Keep | None" = None) -> M: ...
def keep_ties(model: Any, *, keep: "Keep | None" = None) -> Any:
    """Keeps every tie of a model from now on, until `lw.release_ties(model)`. Returns the model.

    The ties survive deepcopy and pickle, `.to()` and `.half()`, `to_empty()`, and `load_state_dict` with or without
    `assign=True`, even on a submodule that has only one of the names. If you overwrite a tied weight, the next leafwise
    call warns. This does not slow down the forward pass.

    A state dict may contain any of the tied names. If it contains several, their values must be equal, unless `keep`
    says which to use: the first name (`"source"`), the other (`"target"`), or their mean (`"mean"`).

    For a part of a model, this keeps the ties between the names in that part, and warns about ties to names outside.

    >>> import torch, leafwise as lw
    >>> with torch.device("meta"):
    ...     model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(100, 16), "head": torch.nn.Linear(16, 100)})
    >>> model["head"].weight = model["embed"].weight
    >>> model = lw.keep_ties(model).to_empty(device="cpu")
    >>> model["head"].weight is model["embed"].weight
    True
    """
    check_keep(keep)
    with opened(model, "keep_ties", live=True) as t:
        check_not_gathered(t, "keep the ties of")
        leaves = _leaves_to_keep(t)
        return part_of(t, keep_leaf_ties(t, leaves, keep))


def _leaves_to_keep(t: Tree) -> list[int]:
    """The tied leaves of a tree; warns about ties that cannot be kept, or not in this part alone."""
    columns = t.columns
    inside = set(t.rows)
    leaves = []
    for leaf in sorted(columns.further_rows):
        all_rows = columns.rows_of(leaf)
        if not inside.intersection(all_rows):
            continue
        for row in all_rows:
            if columns.row_op(row) == "view" and columns.row_op(row).slices is None:
                warn(
                    TieWarning(
                        f"cannot keep the tie of {columns.row_text(row)}: it is a view of {columns.row_text(leaf)} "
                        "that cannot be expressed as a slice"
                    )
                )
                break
        else:
            rows = rows_to_keep(columns, leaf, inside)
            if left := [row for row in all_rows if row not in inside and row not in rows]:
                names = listed([columns.row_text(row) for row in all_rows if row in inside], 3)
                others = listed([columns.row_text(row) for row in left], 3)
                warn(
                    TieWarning(
                        f"{names} is tied to {others}, outside this part, and that tie is not kept; "
                        "call lw.keep_ties on the whole model to keep it"
                    )
                )
            leaves.append(leaf)
    return leaves


@overload
def release_ties(model: Tree) -> Any: ...
@overload
def release_ties(model: M) -> M: ...
def release_ties(model: Any) -> Any:
    """Stops keeping the ties of a model: they stay tied for now, but `to_empty()`, for example, may undo them.

    Returns the model. A transposed or sliced tie is a view that leafwise computes, so it lasts until `lw.untie`. For a
    part of a model, this releases the names in that part.

    >>> import torch, leafwise as lw
    >>> shared = torch.nn.Linear(4, 4)
    >>> model = lw.keep_ties(torch.nn.ModuleDict({"a": shared, "b": torch.nn.Linear(4, 4)}))
    >>> model = lw.tie(model, "b.weight", to="a.weight", keep="source")
    >>> model = lw.release_ties(model).to("meta").to_empty(device="cpu")
    >>> model["b"].weight is model["a"].weight
    False
    """
    with opened(model, "release_ties", live=True) as t:
        columns = t.columns
        root = columns.node_objects[0]
        objects = [columns.node_objects[node] for node in node_numbers(t)]
        places = None if t.is_whole else [place_of(columns, row) for row in t.rows]
        for home in columns.homes_of(objects):
            if (tying := capability_or_none(home, Tying)) is not None:
                root = tying.release_ties(root, objects, places)
        return part_of(t, root)
