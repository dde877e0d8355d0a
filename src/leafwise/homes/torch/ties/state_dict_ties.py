"""Ties in state dicts: a state dict may have any of the tied names, and their values must agree if it has several."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from leafwise.errors import TieError
from leafwise.homes.torch.ties.bonds import Bond, TensorSlot
from leafwise.homes.torch.values.tensor_values import choose, same_bits, seen_through


class StateDictCheck:
    """A check, at a module above several names of a tie, that a state dict has equal values for them.

    `keys` are the names: the number of the member, and its key. A check is `complete` if it has all names of the tie.
    """

    def __init__(self, bond: Bond, keys: list[tuple[int, str]], complete: bool) -> None:
        self.bond = bond
        self.keys = keys
        self.complete = complete

    def reconcile(
        self, module: nn.Module, state: dict[str, Any], prefix: str
    ) -> tuple[Sequence[str], Sequence[TensorSlot]]:
        """Checks that the values of tied names in `state` agree, and fills in missing names. Changes only `state`.
        Returns the missing keys that were filled in, and the views that need not be loaded because their source is."""
        bond = self.bond
        source = bond.source_tensor()
        if source is None or nn.parameter.is_lazy(source):
            return (), ()
        keys = [
            (number, prefix + key)
            for number, key in self.keys
            if bond.intact(number)
            and _holds_at(module, key, bond.slots[number])
            and isinstance(state.get(prefix + key, source), torch.Tensor)  # PyTorch reports values that are not tensors
        ]
        present = [(number, key) for number, key in keys if key in state]
        present = [(number, key) for number, key in present if not state[key].is_meta] or present
        if not present:
            return (), ()
        if any(state[key].shape != seen_through(source, bond.members[number].op).shape for number, key in present):
            return (), ()  # PyTorch reports wrong shapes
        whole, covers = self._whole(source, present, state)
        plain = [key for number, key in keys if not bond.members[number].viewed]
        if not covers or not plain:
            # Only the views can load these values. If they differed, each loads its part of the chosen value.
            for number, key in present:
                state[key] = seen_through(whole, bond.members[number].op)
            if not covers:
                return (), ()
        filled = [key for _, key in keys if key not in state]
        agreed = []
        for number, key in keys:
            if not bond.members[number].viewed:
                state[key] = seen_through(whole, bond.members[number].op)
            elif plain or key in filled:
                agreed.append(bond.slots[number])
        return filled, agreed

    def _whole(
        self, source: torch.Tensor, present: list[tuple[int, str]], state: dict[str, Any]
    ) -> tuple[torch.Tensor, bool]:
        """The value of the source, from all names in the state dict, and whether they cover all of it."""
        ops = {number: self.bond.members[number].op for number, _ in present}
        plain = [state[key] for number, key in present if ops[number] == "same"]
        covers = True
        if plain:
            whole: torch.Tensor = plain[0]
        else:
            example = state[present[0][1]]
            whole = torch.empty(source.shape, dtype=example.dtype, device=example.device)
            covered = torch.zeros(source.shape, dtype=torch.bool)
            for number, key in reversed(present):
                seen_through(whole, ops[number]).copy_(state[key].detach())
                seen_through(covered, ops[number]).fill_(True)
            covers = bool(covered.all())
        differing = [
            (number, key) for number, key in present if not _agree(seen_through(whole, ops[number]), state[key], source)
        ]
        return (self._chosen(whole, present, differing, state) if differing else whole), covers

    def _chosen(
        self,
        whole: torch.Tensor,
        present: list[tuple[int, str]],
        differing: list[tuple[int, str]],
        state: dict[str, Any],
    ) -> torch.Tensor:
        """The value of the source if the names differ, chosen by the `keep` of the tie."""
        bond = self.bond
        names = ", ".join(key for _, key in present)
        if bond.keep is None:
            agreeing = next((key for number, key in present if (number, key) not in differing), present[0][1])
            raise TieError(
                f"the state dict has different values for the tied names {agreeing} and {differing[0][1]} "
                f"(all tied names: {names}); these names were not loaded; "
                'lw.keep_ties(model, keep="source") uses the value of the first name, keep="target" that of the '
                'others, keep="mean" their mean; lw.untie(model, …) unties them'
            )
        values = [(state[key].detach(), bond.members[number].op) for number, key in present]
        first = next((at for at, (number, _) in enumerate(present) if number == bond.source), None)
        if bond.keep == "mean":
            total = torch.zeros(whole.shape, dtype=torch.float64, device=whole.device)
            count = torch.zeros_like(total)
            for value, op in values:
                seen_through(total, op).add_(value)
                seen_through(count, op).add_(1)
            return torch.where(count > 0, total / count.clamp(min=1), whole.detach().to(torch.float64)).to(whole.dtype)
        if bond.keep == "source":
            return whole if first is None else values[first][0]
        targets = [value_and_op for at, value_and_op in enumerate(values) if at != first]
        chosen = choose(whole, targets, "target")
        if not all(same_bits(seen_through(chosen, op), value) for value, op in targets):
            raise TieError(f'keep="target" cannot choose: the targets among {names} differ; they were not loaded')
        return chosen


def _agree(a: torch.Tensor, b: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether two values have the same bits once they are in the model."""
    if a.dtype != b.dtype:
        a, b = a.to(like.dtype), b.to(like.dtype)
    return same_bits(a, b)


def _holds_at(module: nn.Module, key: str, slot: TensorSlot) -> bool:
    """Whether a key still leads to this slot, and is in state dicts."""
    owner: nn.Module | None = module
    for step in key.split(".")[:-1]:
        owner = None if owner is None else owner._modules.get(step)
    return owner is not None and owner is slot.owner() and slot.name not in owner._non_persistent_buffers_set
