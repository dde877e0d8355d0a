"""What a state dict says about a tie: it may give any of the names, and where it gives several they must agree."""

from typing import Any, NamedTuple

import torch
from torch import nn

from leafwise.core.memory import Op
from leafwise.errors import TieError
from leafwise.homes.torch.bonds import Bond, Slot
from leafwise.homes.torch.values import choose, put_through, same_bits, seen_through


class Reconciled(NamedTuple):
    """The keys that were not given and are now, and the views whose source loads what they show."""

    filled: list[str]
    agreed: list[Slot]


class Check:
    """That a state dict, seen from a module above several names of a tie, tells one story about them.

    `keys` are the names: the number of the member, the key that leads to it, and its op. A check is `complete` where
    it has all names of the tie.
    """

    def __init__(self, bond: Bond, keys: list[tuple[int, str, Op]], complete: bool) -> None:
        self.bond = bond
        self.keys = keys
        self.complete = complete

    def reconcile(self, module: nn.Module, state: dict[str, Any], prefix: str) -> Reconciled:
        """Checks that the names which are given agree, and gives those which are not. Changes nothing but `state`."""
        bond = self.bond
        source = bond.source_tensor()
        if source is None or nn.parameter.is_lazy(source):
            return Reconciled([], [])
        keys = [
            (number, prefix + key)
            for number, key, _ in self.keys
            if bond.intact(number)
            and _holds_at(module, key, bond.slots[number])
            and isinstance(state.get(prefix + key, source), torch.Tensor)  # PyTorch says what is not a tensor
        ]
        given = [(number, key) for number, key in keys if key in state]
        given = [one for one in given if not state[one[1]].is_meta] or given
        if not given:
            return Reconciled([], [])
        if any(state[key].shape != seen_through(source, bond.members[n].op).shape for n, key in given):
            return Reconciled([], [])  # PyTorch says what has the wrong shape
        whole, covers = self._whole(source, given, state)
        plain = [key for number, key in keys if not bond.members[number].viewed]
        if not covers or not plain:
            # Nobody but the views themselves can load what is given; where they differed, they load what was chosen.
            for number, key in given:
                state[key] = seen_through(whole, bond.members[number].op)
            if not covers:
                return Reconciled([], [])
        filled = [key for _, key in keys if key not in state]
        agreed = []
        for number, key in keys:
            if not bond.members[number].viewed:
                state[key] = seen_through(whole, bond.members[number].op)
            elif plain or key in filled:
                agreed.append(bond.slots[number])
        return Reconciled(filled, agreed)

    def _whole(
        self, source: torch.Tensor, given: list[tuple[int, str]], state: dict[str, Any]
    ) -> tuple[torch.Tensor, bool]:
        """The value of the source that the names which are given agree on, and whether they tell all of it."""
        ops = {number: self.bond.members[number].op for number, _ in given}
        plain = [state[key] for number, key in given if ops[number] == "same"]
        covers = True
        if plain:
            whole: torch.Tensor = plain[0]
        else:
            example = state[given[0][1]]
            whole = torch.empty(source.shape, dtype=example.dtype, device=example.device)
            covered = torch.zeros(source.shape, dtype=torch.bool)
            for number, key in reversed(given):
                put_through(whole, ops[number], state[key].detach())
                put_through(covered, ops[number], torch.ones((), dtype=torch.bool))
            covers = bool(covered.all())
        odd = [one for one in given if not _agree(seen_through(whole, ops[one[0]]), state[one[1]], source)]
        return (self._settle(whole, given, odd, state) if odd else whole), covers

    def _settle(
        self,
        whole: torch.Tensor,
        given: list[tuple[int, str]],
        odd: list[tuple[int, str]],
        state: dict[str, Any],
    ) -> torch.Tensor:
        bond = self.bond
        names = ", ".join(key for _, key in given)
        if bond.keep is None:
            even = next((key for number, key in given if (number, key) not in odd), given[0][1])
            raise TieError(
                f"the state dict gives tied names different values: {even} and {odd[0][1]} (tied are {names}); they "
                'were left as they are. lw.keep_ties(model, keep="source") takes the value of the first, keep="target" '
                'of the other, keep="mean" their mean; lw.untie(model, …) lets them differ'
            )
        values = [(state[key].detach(), bond.members[number].op) for number, key in given]
        first = next((at for at, (number, _) in enumerate(given) if number == bond.source), None)
        if bond.keep == "mean":
            total = torch.zeros(whole.shape, dtype=torch.float64, device=whole.device)
            count = torch.zeros_like(total)
            for value, op in values:
                seen_through(total, op).add_(value)
                seen_through(count, op).add_(1)
            return torch.where(count > 0, total / count.clamp(min=1), whole.detach().to(torch.float64)).to(whole.dtype)
        if bond.keep == "source":
            return whole if first is None else values[first][0]
        targets = [one for at, one in enumerate(values) if at != first]
        chosen = choose(whole, targets, "target")
        if not all(same_bits(seen_through(chosen, op), value) for value, op in targets):
            raise TieError(f'keep="target" cannot choose: the targets among {names} differ; they were left as they are')
        return chosen


def _agree(a: torch.Tensor, b: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether two values end up as the same bits in the model."""
    if a.dtype != b.dtype:
        a, b = a.to(like.dtype), b.to(like.dtype)
    return same_bits(a, b)


def _holds_at(module: nn.Module, key: str, slot: Slot) -> bool:
    """Whether a key still leads to this slot, and state dicts have it."""
    here: nn.Module | None = module
    for step in key.split(".")[:-1]:
        here = None if here is None else here._modules.get(step)
    return here is not None and here is slot.owner() and slot.name not in here._non_persistent_buffers_set
