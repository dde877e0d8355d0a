"""How ties of PyTorch modules are kept when PyTorch replaces parameters.

A **plain tie** is one Parameter in several modules, as in PyTorch itself. An operation that replaces the Parameter in
one of them (`to_empty`, a load with `assign=True`, a move to another kind of device) would untie it from the others. A
`TieKeeper` on each module with a tied name wraps the methods by which PyTorch replaces parameters, and updates the
other names. It is in the `__dict__` of the instance, so the type of the module and its forward stay as they are.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from leafwise.errors import TieError
from leafwise.homes.torch.ties.bonds import KEEPER, Bond, BondMember, CopyCompletion, TensorSlot
from leafwise.homes.torch.ties.state_dict_ties import StateDictCheck

# Modules with keepers, by their identity. While there are none, walks do not look for declared ties.
_kept: "weakref.WeakValueDictionary[int, nn.Module]" = weakref.WeakValueDictionary()

# Method of `nn.Module` → the method of the keeper that wraps it.
_WRAPPED = {"_apply": "apply", "_load_from_state_dict": "load", "load_state_dict": "load_state_dict"}


class TieKeeper:
    """Wraps the methods that replace the tensors of one module, and keeps its ties when they do."""

    def __init__(self, owner: nn.Module) -> None:
        self.owner = weakref.ref(owner)
        self.parameters: dict[str, Any] = owner._parameters
        self.buffers: dict[str, Any] = owner._buffers
        self.bonds: list[tuple[Bond, int]] = []
        self.checks: list[StateDictCheck] = []
        self.before: dict[str, Any] = {}  # earlier wrappers, by the name of the method
        self.agreed: dict[str, list[str]] = {}  # view → the missing keys of the load in which it agreed
        self._filled: tuple[Any, list[str]] = (None, [])  # the missing keys of a load, and the keys that were filled in

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in ("parameters", "buffers", "bonds", "checks", "before")}
        return {**state, "owner": self.owner(), "completion": CopyCompletion([bond for bond, _ in self.bonds])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        owner = state["owner"]
        self.owner = weakref.ref(owner)
        self.parameters, self.buffers = state["parameters"], state["buffers"]
        self.bonds, self.checks, self.before = state["bonds"], state["checks"], state["before"]
        self.agreed, self._filled = {}, (None, [])
        _kept[id(owner)] = owner
        for check in self.checks:
            check.bond.checkers.append(self.owner)
        for bond, number in self.bonds:
            if number in bond.members:
                bond.join(number, self.slot(bond.members[number]))

    def slot(self, member: BondMember) -> TensorSlot:
        tensors = self.buffers if member.in_buffers else self.parameters
        return TensorSlot(tensors, member.in_buffers, member.name, self.owner)

    def install(self) -> None:
        owner: Any = self.owner()
        owner.__dict__[KEEPER] = self
        for method, wrapper in _WRAPPED.items():
            if method in owner.__dict__:
                self.before[method] = owner.__dict__[method]
            owner.__dict__[method] = getattr(self, wrapper)
        _kept[id(owner)] = owner

    def remove_if_idle(self) -> None:
        owner = self.owner()
        if owner is None or self.bonds or self.checks or owner.__dict__.get(KEEPER) is not self:
            return
        del owner.__dict__[KEEPER]
        for name in _WRAPPED:
            owner.__dict__.pop(name, None)
        owner.__dict__.update(self.before)
        _kept.pop(id(owner), None)

    def _original(self, name: str) -> Callable[..., Any]:
        """The method that this wraps."""
        if name in self.before:
            before: Callable[..., Any] = self.before[name]
            return before
        owner = self.owner()
        if owner is None:
            raise TieError(
                "this is a shallow copy of a module whose ties are kept, and that module no longer exists; "
                "use copy.deepcopy, or call lw.release_ties(model) before copying"
            )
        bound: Callable[..., Any] = getattr(type(owner), name).__get__(owner)
        return bound

    def apply(self, fn: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        """`Module._apply`: moves and casts."""
        with self._following():
            result = self._original("_apply")(fn, *args, **kwargs)
            for bond, number in self.bonds:
                if number in bond.members and bond.is_buffer_view(number) and bond.source in bond.slots:
                    bond.apply_to_source(fn)
        return result

    def load(
        self, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: list[str], *rest: Any
    ) -> None:
        """`Module._load_from_state_dict`: every load, of this module or of a module above it."""
        owner: Any = self.owner()
        load = self._original("_load_from_state_dict")

        def reconcile(state: dict[str, Any], prefix: str, *_: Any) -> None:
            self._filled = missing, []
            for check in self.checks:
                filled, agreed = check.reconcile(owner, state, prefix)
                self._filled[1].extend(filled)
                for slot in agreed:
                    view_owner: Any = slot.owner()
                    keeper_of(view_owner).agreed[slot.name] = missing

        # The last hook, because other hooks may rename keys.
        hooks = owner._load_state_dict_pre_hooks
        hooks[KEEPER] = reconcile
        try:
            with self._following():
                load(state, prefix, metadata, strict, missing, *rest)
        finally:
            hooks.pop(KEEPER, None)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """`Module.load_state_dict` of this module itself; its class may have changed the arguments."""
        result = self._original("load_state_dict")(*args, **kwargs)
        missing = getattr(result, "missing_keys", None)
        strict = kwargs.get("strict", args[1] if len(args) > 1 else True)
        if not strict and isinstance(missing, list) and self._filled[0] is missing:
            # The keys that were filled in are reported as missing, but a strict load does not fail because of them.
            missing.extend(key for key in self._filled[1] if key not in missing)
        return result

    @contextmanager
    def _following(self) -> Iterator[None]:
        """A context: if tensors of this module are replaced in it, the names tied to them get the new tensors."""
        before = []
        for bond, number in self.bonds:
            if number in bond.slots:
                held = bond.slots[number].held()
                before.append((bond, number, held, bond.holders(held), bond.buffer_views()))
        try:
            yield
        finally:
            for bond, number, held, holders, views in before:
                # `holders` from before: a module with several names of the tie replaces each of them.
                if number in holders and number in bond.slots and bond.slots[number].held() is not held:
                    bond.follow(number, holders)
                bond.renew_buffer_views(views)


def keeper_of(module: nn.Module) -> TieKeeper:
    """The keeper of a module, made if there is none."""
    keeper: TieKeeper | None = module.__dict__.get(KEEPER)
    if keeper is None or keeper.owner() is not module:
        keeper = TieKeeper(module)
        keeper.install()
    return keeper


def is_any_kept() -> bool:
    """Whether a tie is kept anywhere in this process."""
    return bool(_kept)


def keepers(objects: list[Any]) -> list[TieKeeper]:
    """The keepers of these objects, each once."""
    keepers_or_none = (obj.__dict__.get(KEEPER) for obj in objects if isinstance(obj, nn.Module))
    return list({id(keeper): keeper for keeper in keepers_or_none if keeper is not None}.values())


def bonds_at(owner: nn.Module, name: str) -> list[tuple[Bond, int]]:
    """The bonds that a name of a module belongs to."""
    keeper: TieKeeper | None = owner.__dict__.get(KEEPER)
    held = keeper.bonds if keeper is not None else []
    return [(bond, number) for bond, number in held if number in bond.slots and bond.slots[number].name == name]
