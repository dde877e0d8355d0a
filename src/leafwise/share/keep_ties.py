"""`lw.keep_ties`: ties that survive what would undo them."""

import warnings
from typing import Any

from leafwise.core.capabilities.tying import Keep, Tying
from leafwise.core.home import offer
from leafwise.core.tree import tree
from leafwise.errors import TieWarning
from leafwise.share.places import check_keep, keep_leaf_ties


def keep_ties(model: Any, on: bool = True, *, keep: "Keep | None" = None) -> Any:
    """Keeps every tie of the model from now on; `lw.keep_ties(model, False)` lets go. Returns the model.

    The ties survive deepcopy and pickle, `.to()` and `.half()`, `to_empty()`, `load_state_dict` with and without
    `assign=True`, also on a submodule that holds only one of the names. A state dict may hold any of the tied names;
    where it holds several they must agree, unless `keep` says whose value is taken: "source" is the first name of the
    leaf, "target" the other, "mean" their mean. What plain assignment undoes is reported by the next walk. Nothing is
    added to forward.

    >>> import torch, leafwise as lw
    >>> with torch.device("meta"):
    ...     model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(100, 16), "head": torch.nn.Linear(16, 100)})
    >>> model["head"].weight = model["embed"].weight
    >>> model = lw.keep_ties(model).to_empty(device="cpu")
    >>> model["head"].weight is model["embed"].weight
    True
    """
    check_keep(keep)
    t = tree(model)
    columns = t.columns
    root = columns.node_objects[0]
    if not on:
        for home in columns.homes_of(columns.node_objects):
            if (tying := offer(home, Tying)) is not None:
                root = tying.release_ties(root, columns.node_objects)
        return root
    leaves = []
    for leaf, rows in sorted(columns.further_rows.items()):
        unknown = [row for row in rows if columns.row_op(row) == "view" and columns.row_op(row).slices is None]
        for row in unknown:
            warnings.warn(
                TieWarning(
                    f"{columns.row_text(row)} lies in {columns.row_text(leaf)} in a way that no slice says; "
                    "this tie cannot be kept"
                ),
                stacklevel=2,
            )
        if not unknown:
            leaves.append(leaf)
    keep_leaf_ties(t, leaves, keep)
    return root
