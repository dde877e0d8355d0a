"""Tying and untying parameters of PyTorch modules. See `keepers` for how ties are kept, `tied_views` for views."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from leafwise.core.capabilities.tying import DeclaredTie, Keep, Place, TiedPlaces, Tying
from leafwise.core.home import Spec
from leafwise.core.memory.ops import Op
from leafwise.errors import TieWarning
from leafwise.homes.torch.gpu.launching import check_not_capturing
from leafwise.homes.torch.tensors import is_expanded
from leafwise.homes.torch.ties.bonds import KEEPER, Bond, BondMember
from leafwise.homes.torch.ties.keepers import TieKeeper, bonds_at, is_any_kept, keeper_of, keepers
from leafwise.homes.torch.ties.state_dict_ties import StateDictCheck
from leafwise.homes.torch.ties.tied_views import (
    ParameterView,
    attach_view,
    class_with_view,
    detach_view,
    is_view,
    plain_class,
    views_of,
)
from leafwise.homes.torch.values.tensor_values import choose, seen_through

# -- keeping -----------------------------------------------------------------------------------------------


class TorchTying(Tying):
    def declared(self, objects: list[Any]) -> list[tuple[int, DeclaredTie]]:
        """The ties that are kept, each with the number of a module that has all their names below it."""
        if not is_any_kept():
            return []
        ties = []
        for number, obj in enumerate(objects):
            keeper = obj.__dict__.get(KEEPER) if isinstance(obj, nn.Module) else None
            complete = [check for check in keeper.checks if check.complete] if keeper is not None else []
            for check in complete:
                members = check.bond.members
                keys = tuple((key, members[number].op) for number, key in check.keys if number in members)
                ties.append((number, DeclaredTie(keys)))
        return ties

    def cannot_tie(self, place: Place, value: torch.Tensor, op: Op) -> str:
        """Why the tensor at this place cannot be tied; an empty string where it can."""
        owner = place.owner
        kind = plain_class(type(owner)).__name__
        if nn.parameter.is_lazy(value):
            return "has no shape until the first forward of its lazy layer; run one, then tie"
        if value.is_quantized or hasattr(value, "quant_state") or hasattr(value, "SCB"):
            return "is quantized, and its scales cannot be tied; tie before quantizing"
        if type(owner).__name__ == "ParametrizationList":
            layer, _, rest = place.path.rpartition(".parametrizations.")
            return (
                "is inside a parametrization; remove it first: "
                f'torch.nn.utils.parametrize.remove_parametrizations(model.{layer}, "{rest.partition(".")[0]}")'
            )
        if value.layout == torch.strided and is_expanded(value):
            return "is expanded: several of its elements share memory; give each its own with .contiguous()"
        if op == "same":
            return ""
        if isinstance(owner, nn.RNNBase):
            return f"belongs to a {kind}, which passes its weights as a list; only a plain tie is possible"
        if isinstance(owner, nn.ParameterList | nn.ParameterDict):
            return f"belongs to a {kind}, which reads its own dict; only a plain tie is possible"
        if type(value) not in (nn.Parameter, torch.Tensor):
            return f"is a {type(value).__name__}, which does not support views"
        if parametrize.is_parametrized(owner):
            return "belongs to a module that is parametrized; tie first, then parametrize"
        try:
            class_with_view(type(owner), place.name)
        except Exception as error:
            return f"belongs to a {kind}, which cannot be subclassed ({type(error).__name__}: {error})"
        return ""

    def way_to_match(self, place: Place, spec: Spec, other: Spec) -> str:
        module = _module_code(place.path.rpartition(".")[0])
        if spec.dtype != other.dtype:
            return f"cast one first: {module}.to(torch.{other.dtype})"
        if "meta" in (spec.device, other.device):
            return "give the one on meta memory first, with to_empty() or load_state_dict(assign=True)"
        return f'move one first: {module}.to("{other.device}")'

    def tied_elsewhere(self, place: Place, known: list[Place]) -> list[str]:
        """The paths of names to which this place is kept tied and which are not among the known places."""
        known_slots = {(id(known_place.owner), known_place.name) for known_place in known}
        paths = []
        for bond, number in bonds_at(place.owner, place.name):
            for tied in bond.tied_to(number):
                slot = bond.slots[tied]
                if (id(slot.owner()), slot.name) not in known_slots:
                    paths.append(bond.members[tied].path)
        return paths

    def tie(self, root: Any, groups: list[TiedPlaces], keep: Keep | None) -> Any:
        """Makes the other places of each group names of its source. If one fails, none is changed."""
        check_not_capturing("tie")
        undo: list[Callable[[], None]] = []
        try:
            for group in groups:
                _rebind(group, keep, undo)
        except BaseException:
            for step in reversed(undo):
                step()
            raise
        return root

    def untie(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        """Gives each place an independent tensor with equal values."""
        check_not_capturing("untie")  # each replay would copy the values again
        for place in places:
            owner, name = place.owner, place.name
            if is_view(owner, name):
                detach_view(owner, name)
                _leave_bonds(place)
            elif not _views_became_independent(place) and _leave_bonds(place):
                tensor = held(place)
                copied = tensor.detach().clone(memory_format=torch.preserve_format)
                is_parameter = isinstance(tensor, nn.Parameter)
                setattr(owner, name, nn.Parameter(copied, tensor.requires_grad) if is_parameter else copied)
        _tidy(objects)
        return root

    def separate(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        """Each place has a module that is also used elsewhere; replaces it by a copy of that module."""
        check_not_capturing("untie")
        for owner, name, _ in places:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TieWarning)  # the copy is meant to be untied
                owner._modules[name] = copy.deepcopy(owner._modules[name])
            for keeper in keepers(objects):
                for check in keeper.checks:
                    check.keys = [key for key in check.keys if not _leads_through(keeper, key[1], owner, name)]
        _tidy(objects)
        return root

    def keep_ties(self, root: Any, objects: list[Any], groups: list[TiedPlaces], keep: Keep | None) -> Any:
        """Keeps each tie from now on. New names are added to a tie that is kept already."""
        known = keepers(objects)
        for group in groups:
            bond = _bond_of(group)
            keep_before = None if bond is None else bond.keep
            if bond is not None and _has_other_source(bond, group):
                bond.dissolve()  # the ops of the group are relative to its own source
                bond = None
            new = bond is None
            bond = bond or Bond()
            bond.keep = keep_before if keep is None else keep
            if not new and is_view(group.places[0].owner, group.places[0].name):
                continue  # the source is outside of this tree, where the tie is kept
            # Of a part of a model, some of these modules may be outside.
            modules_above = [above for above, _ in group.above if isinstance(above, nn.Module)]
            for keeper in [*known, *map(keeper_of, modules_above)]:
                keeper.checks = [check for check in keeper.checks if check.bond is not bond]
            numbers = [_enter(bond, place, op) for place, op in zip(group.places, group.ops, strict=True)]
            if new or bond.source not in bond.slots:
                bond.source = numbers[0]
            for above, names in group.above:
                if isinstance(above, nn.Module):
                    keys = [(numbers[group.names[name]], key) for name, key in names]
                    keeper = keeper_of(above)
                    keeper.checks.append(StateDictCheck(bond, keys, complete=len(names) == len(group.names)))
                    bond.checkers.append(keeper.owner)
        _tidy(objects)
        return root

    def release_ties(self, root: Any, objects: list[Any], places: list[Place] | None) -> Any:
        """Takes names out of the ties that are kept. Ties with views stay: a view lasts until it is untied."""
        slots = None if places is None else {(id(place.owner), place.name) for place in places}
        checkers: list[Any] = []
        for keeper in keepers(objects):
            for bond, number in list(keeper.bonds):
                slot = bond.slots.get(number)
                if _has_views(bond) or (slots is not None and slot and (id(keeper.owner()), slot.name) not in slots):
                    continue
                checkers += [module for checker in bond.checkers if (module := checker()) is not None]
                _leave(keeper, bond, number)
        _tidy([*objects, *checkers])
        return root


def _module_code(path: str) -> str:
    """The Python code for the module at a path, for messages.

    >>> _module_code(""), _module_code("decoder.out"), _module_code("layers.0")
    ('model', 'model.decoder.out', 'model.get_submodule("layers.0")')
    """
    if not path:
        return "model"
    return f"model.{path}" if all(map(str.isidentifier, path.split("."))) else f'model.get_submodule("{path}")'


def _bond_of(group: TiedPlaces) -> Bond | None:
    """The bond to which some of the places already belong. If there are several, the first; others are dissolved."""
    bonds: list[Bond] = []
    for place in group.places:
        for bond, _ in bonds_at(place.owner, place.name):
            if bond not in bonds:
                bonds.append(bond)
    for bond in bonds[1:]:
        bond.dissolve()
    return bonds[0] if bonds else None


def _has_other_source(bond: Bond, group: TiedPlaces) -> bool:
    """Whether the ops of a tie are relative to another name than the source of its bond, all of whose names it has."""
    slots = {(id(place.owner), place.name) for place in group.places}
    if any((id(slot.owner()), slot.name) not in slots for slot in bond.slots.values()) or _has_views(bond):
        return False
    source = bond.slots.get(bond.source)
    first = group.places[0]
    is_first = source is not None and source.owner() is first.owner and source.name == first.name
    return not is_first and any(op != "same" for op in group.ops)


def _enter(bond: Bond, place: Place, op: Op) -> int:
    """The number of a place in a bond. A new place is added."""
    owner, name = place.owner, place.name
    number = bond.number_of(owner, name)
    if number is None:
        keeper = keeper_of(owner)
        member = BondMember(place.path, name, op, in_buffers=name in owner._buffers, viewed=is_view(owner, name))
        number = bond.add(member, keeper.slot(member))
        keeper.bonds.append((bond, number))
    return number


def _tidy(objects: list[Any]) -> None:
    """Removes what is no longer needed: checks of names that no longer exist, bonds of one name, unused keepers."""
    for keeper in keepers(objects):
        for check in keeper.checks:
            check.keys = [key for key in check.keys if key[0] in check.bond.members]
        keeper.checks = [check for check in keeper.checks if len(check.keys) > 1]
    checked = {id(check.bond) for keeper in keepers(objects) for check in keeper.checks}
    for keeper in keepers(objects):
        for bond, _ in list(keeper.bonds):
            if len(bond.members) < 2 and id(bond) not in checked:
                bond.dissolve()
        keeper.remove_if_idle()


def _has_views(bond: Bond) -> bool:
    return any(member.viewed for member in bond.members.values())


# -- tying -------------------------------------------------------------------------------------------------


def _rebind(group: TiedPlaces, keep: Keep | None, undo: list[Callable[[], None]]) -> None:
    source, *targets = group.places
    tensor = held(source)
    chosen = choose(tensor, [(held(place), op) for place, op in zip(targets, group.ops[1:], strict=True)], keep)
    if chosen is not tensor:
        before = tensor.detach().clone()
        undo.append(lambda: _write(tensor, before))
        _write(tensor, chosen)
    for place, op in zip(targets, group.ops[1:], strict=True):
        if is_view(place.owner, place.name):
            _leave_bonds(place)
            detach_view(place.owner, place.name)
        undo.append(_way_back(place))
        if op == "same":
            setattr(place.owner, place.name, tensor)
        elif place.name in place.owner._buffers:
            place.owner._buffers[place.name] = seen_through(tensor.detach(), op)
        else:
            attach_view(place.owner, place.name, ParameterView(source.owner, source.name, op, place.path, source.path))
    for place in targets:
        _leave_bonds(place)


def _write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(values)


def _way_back(place: Place) -> Callable[[], None]:
    """A function that puts back the tensor at a place, and the type of its owner."""
    owner, name = place.owner, place.name
    tensor, cls = held(place), type(owner)

    def put_back() -> None:
        views_of(owner).pop(name, None)
        owner.__class__ = cls
        (owner._buffers if name in owner._buffers else owner._parameters)[name] = tensor

    return put_back


def held(place: Place) -> Any:
    """The tensor at a place."""
    if is_view(place.owner, place.name):
        return getattr(place.owner, place.name)
    parameter = place.owner._parameters.get(place.name)
    return place.owner._buffers[place.name] if parameter is None else parameter


# -- untying -----------------------------------------------------------------------------------------------


def _views_became_independent(place: Place) -> bool:
    """Called before a place is untied. If it is the source of views, another plain name of the same leaf becomes their
    source; if there is none, the views become independent, which unties the source as well."""
    independent = False
    for bond, number in bonds_at(place.owner, place.name):
        if number != bond.source:
            continue
        heirs = [slot for slot in bond.slots if slot != number and bond.is_plain(slot) and bond.intact(slot)]
        for viewer, member in list(bond.members.items()):
            module = bond.slots[viewer].owner() if viewer in bond.slots else None
            if module is None or not is_view(module, member.name):
                continue
            if heirs:
                heir = bond.slots[heirs[0]]
                view = views_of(module)[member.name]
                view.parameters, view.name, view.owner = heir.tensors, heir.name, heir.owner
                view.source = bond.members[heirs[0]].path
            else:
                detach_view(module, member.name)
                _leave_bonds(Place(module, member.name, member.path))
                independent = True
    return independent


def _leave_bonds(place: Place) -> bool:
    """Removes a place from every bond, and dissolves bonds with one name left. Returns whether it was still tied."""
    was_intact = True
    for bond, number in bonds_at(place.owner, place.name):
        was_intact = bond.intact(number)
        keeper: TieKeeper = keeper_of(place.owner)
        _leave(keeper, bond, number)
        keeper.remove_if_idle()
    return was_intact


def _leave(keeper: TieKeeper, bond: Bond, number: int) -> None:
    """Removes one name from a bond, and dissolves the bond if one name is left."""
    keeper.bonds = [membership for membership in keeper.bonds if membership != (bond, number)]
    bond.remove(number)
    if len(bond.members) < 2 or bond.source < 0:
        bond.dissolve()


def _leads_through(keeper: TieKeeper, key: str, owner: nn.Module, name: str) -> bool:
    """Whether a key, followed from the keeper's module, leads through the entry `name` of `owner`."""
    module: Any = keeper.owner()
    for step in key.split(".")[:-1]:
        if module is owner and step == name:
            return True
        module = module._modules.get(step)
        if module is None:
            return False
    return False
