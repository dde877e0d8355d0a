"""`lw.freeze` and `lw.thaw`: exclude leaves from training, and include them again."""

import logging
from typing import Any, TypeVar, overload

from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.columns import Columns
from leafwise.core.dtypes import is_inexact
from leafwise.core.home import capability_or_none
from leafwise.core.parts import check_not_gathered, check_whole_leaves
from leafwise.core.path import listed
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.core.work.ranks import agreeing, team_of
from leafwise.errors import RuleError
from leafwise.share.places import leaves_matching

M = TypeVar("M")

_log = logging.getLogger("leafwise")


@overload
def freeze(model: Tree, where: Any) -> Any: ...
@overload
def freeze(model: M, where: Any) -> M: ...
def freeze(model: Any, where: Any) -> Any:
    """Freezes leaves, so that training does not change them. Returns the model.

    `where` selects the leaves; if nothing matches, that is an error. Frozen parameters get no gradients, and lose the
    gradients they have, so that no optimizer steps them. Buffers that change in training are frozen, too: a batch norm
    with frozen running statistics uses them for normalization, even after `train()`. The tree shows which leaves are
    frozen, and the logger "leafwise" lists them.

    If the model is sharded over several processes, every process must call this, with the same `where`.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    >>> net = lw.freeze(net, "{0,1}.**").train()
    >>> _ = net(torch.randn(16, 4))
    >>> net[1].running_mean.abs().sum().item(), lw.tree(net).counts.trainable
    (0.0, 9)
    """
    return _set_trainable(model, where, trainable=False)


@overload
def thaw(model: Tree, where: Any) -> Any: ...
@overload
def thaw(model: M, where: Any) -> M: ...
def thaw(model: Any, where: Any) -> Any:
    """Makes frozen leaves trainable again, and lets frozen buffers change again. Returns the model.

    `where` selects the leaves; if nothing matches, that is an error. If the model is sharded over several processes,
    every process must call this, with the same `where`.

    >>> import torch, leafwise as lw
    >>> net = lw.freeze(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)), "**")
    >>> lw.tree(lw.thaw(net, "1.*")).counts.trainable
    9
    """
    return _set_trainable(model, where, trainable=True)


def _set_trainable(model: Any, where: Any, trainable: bool) -> Any:
    verb = "thaw" if trainable else "freeze"
    with opened(model, verb, live=True) as t:
        check_not_gathered(t, verb)
        check_whole_leaves(t, verb)
        team = team_of(t)
        with agreeing(t, verb, team) as rows:
            parameters, drifting = _chosen(t, where, trainable, verb)
            if team is not None:
                rows += [(t.columns.row_text(leaf), verb) for leaf in (*parameters, *drifting)]
        return _changed(t, parameters, drifting, trainable)


def _chosen(t: Tree, where: Any, trainable: bool, verb: str) -> tuple[list[int], list[int]]:
    """The parameters and the buffers to change; raises if one of them cannot be changed."""
    columns = t.columns
    leaves = sorted(leaves_matching(t, where))
    parameters = [leaf for leaf in leaves if columns.leaf_kind(leaf) == "parameter"]
    if trainable and not all(_is_float(columns, leaf) for leaf in parameters):
        # Integer parameters cannot be trained. That is an error only if the query matches no others.
        parameters = [leaf for leaf in parameters if _is_float(columns, leaf)] or parameters
    drifting = [leaf for leaf in leaves if columns.leaf_kind(leaf) == "buffer" and _drifts(columns, leaf)]
    _check(columns, leaves, parameters, drifting, verb)
    if not trainable:
        _check_memory(columns, set(parameters))
    return parameters, drifting


def _changed(t: Tree, parameters: list[int], drifting: list[int], trainable: bool) -> Any:
    columns = t.columns
    for batch in columns.batches(parameters):
        batch.home.capability(Freezing).set_trainable(batch.values, trainable)
    owners = {id(owner): owner for owner in (_owner(columns, leaf) for leaf in drifting)}
    for owner in owners.values():
        columns.home(owner).capability(Freezing).hold_buffers(owner, not trainable)
    _log.info("%s", _log_text(t, "thawed" if trainable else "frozen", parameters, drifting))
    return columns.node_objects[t.root]


def _is_float(columns: Columns, leaf: int) -> bool:
    return is_inexact(columns.facts([leaf])[0].spec.dtype)


def _owner(columns: Columns, leaf: int) -> Any:
    return columns.node_objects[columns.row_nodes[leaf]]


def _drifts(columns: Columns, leaf: int) -> bool:
    owner = _owner(columns, leaf)
    freezing = capability_or_none(columns.home(owner), Freezing)
    return freezing is not None and freezing.drifts(owner, columns.row_names[leaf])


def _check(columns: Columns, leaves: list[int], parameters: list[int], drifting: list[int], verb: str) -> None:
    """Raises, before anything is changed, if a leaf cannot be frozen or thawed."""
    if not parameters and not drifting:
        names = listed([columns.row_text(leaf) for leaf in leaves], 3)
        raise RuleError(f"cannot {verb} {names}: neither a parameter nor a buffer that training is known to change")
    for leaf in parameters:
        value = columns.current(leaf)
        if reason := columns.home(value).capability(Freezing).cannot_train(value, verb == "thaw"):
            raise RuleError(f"cannot {verb} {columns.row_text(leaf)}: {reason}; nothing was changed")


def _check_memory(columns: Columns, frozen: set[int]) -> None:
    """Raises if training another leaf would change a frozen one, because they share memory."""
    for members, _ in columns.overlaps:
        for leaf in members:
            if leaf not in frozen and frozen.intersection(members) and columns.facts([leaf])[0].spec.trainable:
                first = next(member for member in members if member in frozen)
                frozen_name, trained_name = columns.row_text(first), columns.row_text(leaf)
                raise RuleError(
                    f"cannot freeze {frozen_name}: {trained_name} shares its memory and is trained; nothing was "
                    f'changed; freeze both, or tie them: lw.tie(model, "{trained_name}", to="{frozen_name}")'
                )


def _log_text(t: Tree, done: str, parameters: list[int], drifting: list[int]) -> str:
    columns = t.columns
    size = sum(facts.spec.size for facts in columns.facts(parameters))
    names = [columns.row_text(leaf) for leaf in (*parameters, *drifting)]
    buffers = f" and {len(drifting):,} buffers" if drifting else ""
    return f"{done}: {len(parameters):,} leaves with {size:,} parameters{buffers}: {listed(names)}"
