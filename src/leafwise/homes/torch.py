"""PyTorch modules and tensors.

Names are PyTorch's own, in PyTorch's own order: the parameters of a module, its buffers, its children.
"""

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from math import prod
from operator import methodcaller
from typing import Any, Literal

import torch
from torch import nn

from leafwise.core.home import Axes, Home, LeafKind, Memory, Pairs, Spec, Visit
from leafwise.core.iterating import Draw, PackedPart, Slot, Stretch
from leafwise.core.memory import Op
from leafwise.core.moments import Moments
from leafwise.core.path import Entry, Path
from leafwise.core.runs import Run
from leafwise.core.sharing import Declared, Group, Keep, Place, Use
from leafwise.homes import (
    torch_advice,
    torch_arrays,
    torch_filling,
    torch_flat,
    torch_foreign,
    torch_freezing,
    torch_initial,
    torch_keepers,
    torch_state,
    torch_ties,
    torch_training,
    torch_values,
    torch_views,
)
from leafwise.homes.roles import role_of
from leafwise.homes.torch_arrays import dtype_name
from leafwise.homes.torch_filling import is_lazy
from leafwise.homes.torch_state import EXTRA

_FORWARD = "_forward_module"
# Wrappers by type, since only a type tells a wrapper from a model with a child called `module`. The ones
# that live in modules of their own are found where the program has imported those.
_WRAPPERS = (
    ("torch.nn.parallel", "DataParallel", "module"),
    ("torch.nn.parallel", "DistributedDataParallel", "module"),
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "_fsdp_wrapped_module"),
    ("lightning.fabric.wrappers", "_FabricModule", _FORWARD),
    ("lightning_fabric.wrappers", "_FabricModule", _FORWARD),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "module"),
    (
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "ActivationWrapper",
        "_checkpoint_wrapped_module",
    ),
)


class TorchHome(Home):
    name = "torch"
    _last_owner: tuple[int, int, str, str] | None = None
    _last_positions: dict[str, int]

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        if issubclass(cls, nn.Module):
            return "node"
        return "leaf" if issubclass(cls, torch.Tensor) else None

    def visit(self, obj: nn.Module) -> Visit:
        # The inner loop of every walk: most modules have no buffers, and almost all have no None child.
        try:
            parameters, buffers, children = obj._parameters, obj._buffers, obj._modules
        except AttributeError as error:
            if "_parameters" in vars(obj):
                raise
            raise TypeError(f"{type(obj).__name__}.__init__ does not call super().__init__()") from error
        if children and None in children.values():
            children = {name: child for name, child in children.items() if child is not None}
        if not buffers:
            return (("parameter", parameters.items()),), children.items(), None
        transient = obj._non_persistent_buffers_set
        if not transient:
            return (("parameter", parameters.items()), ("buffer", buffers.items())), children.items(), None
        leaves: list[tuple[LeafKind, Pairs]] = [("parameter", parameters.items())]
        for name, buffer in buffers.items():
            leaves.append(("transient" if name in transient else "buffer", ((name, buffer),)))
        return tuple(leaves), children.items(), None

    def visitor(self, cls: type, naming: Callable[[Any], Path | None]) -> Callable[[Any], Visit | None]:
        visit = self._visit_with_views if torch_views.view_names(cls) else self.visit
        if self.wrapped_child(cls) == _FORWARD:
            visit = self._visit_forward
        has_extra, writes = _has_extra_state(cls), torch_state.writes_its_own(cls)
        if not has_extra and not writes:
            return visit

        def visit_all(obj: Any) -> Visit:
            leaves, children, _ = visit(obj)
            more = [(EXTRA, obj.get_extra_state())] if has_extra else []
            if writes:
                more += torch_state.extras(obj).items()
            return leaves, [*children, *more], "buffer"

        return visit_all

    def _visit_forward(self, obj: Any) -> Visit:
        # Fabric keeps the model twice: as it was, and as it is called.
        leaves, _, below = self.visit(obj)
        return leaves, [(_FORWARD, obj._modules[_FORWARD])], below

    def _visit_with_views(self, obj: Any) -> Visit:
        ((kind, parameters), *others), children, below = self.visit(obj)
        views = torch_views.views_of(obj)
        shown = [(name, views[name].shown() if held is None and name in views else held) for name, held in parameters]
        return ((kind, shown), *others), children, below

    def type_name(self, obj: Any) -> str:
        return torch_views.plain_class(type(obj)).__name__

    def wrapped_child(self, cls: type) -> str | None:
        for module, name, child in _WRAPPERS:
            wrapper = getattr(sys.modules.get(module), name, None)
            if wrapper is not None and issubclass(cls, wrapper):
                return child
        return None

    def current(self, owner: Any, name: str, value: Any) -> Any:
        # Moving a module replaces its buffers, and `to_empty` or `assign=True` its parameters.
        # By `in` and brackets, which is all that the dicts of a scripted module know.
        held = owner._parameters[name] if name in owner._parameters else None  # noqa: SIM401
        if held is None:
            held = owner._buffers[name] if name in owner._buffers else None  # noqa: SIM401
        if held is None and torch_views.is_view(owner, name):
            held = getattr(owner, name)
        return value if held is None else held

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if name == EXTRA:
            return Entry(name, "step", raw=methodcaller("get_extra_state"), spelling="{root}.get_extra_state()")
        if isinstance(owner, nn.ModuleList | nn.ParameterList) and name.isdecimal():
            return Entry(name, "index", int(name))
        if isinstance(owner, nn.Sequential) and name.isdecimal():
            return Entry(name, "index", self._positions(owner)[name])
        if isinstance(owner, nn.ModuleDict | nn.ParameterDict):
            return Entry(name, "key", name)
        return Entry(name, "attribute")

    def _positions(self, owner: nn.Sequential) -> dict[str, int]:
        """Where each child stands, since a slice of a Sequential keeps the old names.

        Paths are asked for one child after another, so the last answer is kept.
        """
        modules = owner._modules
        which = id(owner), len(modules), next(iter(modules)), next(reversed(modules))
        if which != self._last_owner:
            self._last_positions = {name: position for position, name in enumerate(modules)}
            self._last_owner = which
        return self._last_positions

    def role(
        self, owner: Any, name: str, value: torch.Tensor, lineage: Callable[[], tuple[Any, ...]]
    ) -> tuple[str | None, Axes]:
        ndim = None if is_lazy(value) else value.dim()
        if name.startswith("original") and type(owner).__name__ == "ParametrizationList":
            return _parametrized_role(lineage(), name, ndim)
        return role_of(type(owner), _before_hooks(owner, name), ndim)

    def role_key(self, owner: Any, name: str, value: torch.Tensor) -> Hashable | None:
        if name.startswith("original") or name.endswith(("_orig", "_v")):
            return None  # of what is computed from them
        return type(owner), name, None if is_lazy(value) else value.dim()

    # -- a leaf ----------------------------------------------------------------------------------------

    def spec(self, value: torch.Tensor) -> Spec:
        trainable = True if value.requires_grad else False if isinstance(value, nn.Parameter) else None
        if is_lazy(value):
            return Spec(None, dtype_name(value.dtype), str(value.device), 0, 0, trainable)
        if value.is_nested:
            size = value.numel()
            return Spec(None, dtype_name(value.dtype), str(value.device), size, size * value.element_size(), trainable)
        if (facts := torch_foreign.facts(value)) is not None:
            shape, dtype, size, nbytes = facts
            return Spec(shape, dtype or dtype_name(value.dtype), str(value.device), size, nbytes, trainable)
        # Models repeat a few shapes thousands of times over.
        return _spec(value.shape, value.dtype, value.device, trainable)

    def specs(self, values: list[torch.Tensor]) -> list[Spec]:
        # A plain parameter needs none of the questions that other tensors do.
        marked = torch_foreign.may_be_marked()
        return [
            _spec(value.shape, value.dtype, value.device, value.requires_grad)
            if type(value) is nn.Parameter and not (marked and value.__dict__)
            else self.spec(value)
            for value in values
        ]

    def grads(self, values: list[torch.Tensor]) -> list[Any]:
        return [*torch_training.grads(values)]

    def numpy(self, value: torch.Tensor) -> Any:
        return torch_arrays.as_numpy(value)

    def read(self, value: torch.Tensor, index: Any) -> Any:
        return torch_arrays.read(value, index) if self.reads_parts(value) else super().read(value, index)

    def reads_parts(self, value: torch.Tensor) -> bool:
        return value.device.type not in ("cpu", "meta")  # here, a part is a view of the whole

    def write(self, value: torch.Tensor, array: Any) -> None:
        torch_arrays.write(value, array)

    # -- saving and loading ----------------------------------------------------------------------------

    def pieces(self, value: torch.Tensor, dtype: str) -> Iterator[Any]:
        return torch_filling.pieces(value, dtype)

    def axis_order(self, value: torch.Tensor) -> tuple[int, ...] | None:
        return torch_filling.axis_order(value)

    def snapshot(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        return torch_filling.snapshot(values)

    def buffer(self, value: torch.Tensor) -> memoryview | None:
        return torch_filling.buffer(value)

    def cannot_read(self, value: torch.Tensor) -> str:
        return torch_filling.cannot_read(value)

    def cannot_write(self, value: torch.Tensor) -> str:
        return torch_filling.cannot_write(value)

    # Imported when they are asked: the kernels need NumPy, and a tree does not.

    def cannot_measure(self, value: torch.Tensor) -> str:
        from leafwise.homes import torch_measuring

        return torch_measuring.cannot_measure(value)

    def measure(self, values: list[Any], histogram: bool, count: Callable[[int], None]) -> Callable[[], list[Moments]]:
        from leafwise.homes import torch_measuring

        return torch_measuring.measure(values, histogram, count)

    def cannot_compare(self, value: torch.Tensor) -> str:
        return torch_filling.cannot_read(value) or torch_arrays.has_no_memory(value)

    def run(self, value: torch.Tensor) -> Run | None:
        return torch_arrays.run_of(value)

    def unlisted(self, objects: list[Any]) -> dict[int, str]:
        return torch_foreign.kept_elsewhere(objects)

    def may_be_foreign(self, values: list[Any]) -> bool:
        return torch_foreign.has_marks(values)

    def not_understood(self, values: list[torch.Tensor]) -> dict[int, str]:
        found = ((number, torch_foreign.not_understood(value)) for number, value in enumerate(values))
        return {number: reason for number, reason in found if reason}

    def takes_back(self, obj: Any) -> bool:
        cls: Any = type(obj)
        return _has_extra_state(cls) or torch_state.writes_its_own(cls)

    def saved_otherwise(self, objects: list[Any]) -> dict[int, str]:
        return torch_state.saved_otherwise(objects)

    def after_load(self, objects: list[Any]) -> None:
        torch_state.run_load_hooks(objects)

    def blank(self, value: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return torch_filling.blank(value, shape)

    def wrote(self, values: list[torch.Tensor]) -> None:
        torch_filling.wrote(values)

    def replaced(self, owner: Any, changes: dict[str, Any]) -> Any:
        own: dict[str, Any] = {}
        writes = torch_state.writes_its_own(type(owner))
        for name, value in changes.items():
            if name == EXTRA:
                owner.set_extra_state(value)
            elif writes and not any(name in held for held in (owner._parameters, owner._buffers, owner._modules)):
                own[name] = value
            elif isinstance(value, torch.Tensor):
                torch_filling.put(owner, name, value)
        if own:
            torch_state.give_back(owner, own)
        return owner

    def recompute(self, places: list[tuple[tuple[Any, ...], list[str]]]) -> list[dict[str, Any]]:
        from leafwise.homes import torch_recompute  # torch.overrides is a second of importing that few need

        return [*torch_recompute.recompute(places)]

    # -- iterating -------------------------------------------------------------------------------------

    def optimizer_options(self, optimizer: Any) -> frozenset[str] | None:
        return torch_training.optimizer_options(optimizer)

    def depths_by(self, cls: type) -> Callable[[Any, list[str]], list[int | None]] | None:
        return torch_advice.depths if torch_advice.says_depths(cls) else None

    def undecayed_by(self, cls: type) -> Callable[[Any, list[str]], list[bool]] | None:
        return torch_advice.undecayed if torch_advice.says_undecayed(cls) else None

    def set_trainable(self, values: list[torch.Tensor], trainable: bool) -> None:
        torch_freezing.set_trainable(values, trainable)

    def cannot_train(self, value: torch.Tensor, trainable: bool) -> str:
        return torch_freezing.cannot_train(value, trainable)

    def drifts(self, owner: Any, name: str) -> bool:
        return torch_freezing.drifts(owner, name)

    def hold_still(self, owner: Any, on: bool) -> None:
        torch_freezing.hold_still(owner, on)

    def is_held(self, owner: Any, name: str) -> bool:
        return torch_freezing.is_held(owner, name)

    def first_of_other_shape(self, targets: list[torch.Tensor], values: list[torch.Tensor]) -> int | None:
        return torch_training.first_of_other_shape(targets, values)

    def clone_many(self, values: list[torch.Tensor], precise: bool) -> list[torch.Tensor]:
        return torch_training.clone_many(values, precise)

    def copy_many(self, targets: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
        return torch_training.copy_many(targets, values)

    def lerp_many(self, targets: list[torch.Tensor], values: list[torch.Tensor], weight: float) -> list[torch.Tensor]:
        return torch_training.lerp_many(targets, values, weight)

    def is_stock(self, owner: Any) -> bool:
        return torch_initial.is_stock(type(owner))

    def cannot_fill(self, value: torch.Tensor) -> str:
        return torch_initial.cannot_fill(value)

    def local_parts(self, value: torch.Tensor) -> list[tuple[torch.Tensor, tuple[int, ...] | None]]:
        return torch_initial.local_parts(value)

    def fill(self, value: torch.Tensor, start: int, rows: Any) -> None:
        torch_initial.fill(value, start, rows)

    def draw(self, value: torch.Tensor, start: int, stretch: Stretch, draw: Draw) -> bool:
        return torch_initial.draw(value, start, stretch, draw)

    def drawn_at_a_time(self, value: torch.Tensor) -> int:
        return torch_initial.drawn_at_a_time(value)

    def as_numpy(self, array: Any) -> Any:
        return self.numpy(array) if isinstance(array, torch.Tensor) else super().as_numpy(array)

    def when_shaped(self, owner: Any, then: Callable[[Any], None]) -> None:
        torch_initial.when_shaped(owner, then)

    def norms(self, values: list[torch.Tensor]) -> list[float]:
        return torch_training.norms(values)

    def clip_together(self, values: list[torch.Tensor], max_norm: float) -> list[float] | None:
        return torch_training.clip_together(values, max_norm)

    def scale_many(self, values: list[torch.Tensor], factors: list[float]) -> list[torch.Tensor]:
        return torch_training.scale_many(values, factors)

    def cannot_pack(self, value: torch.Tensor) -> str:
        return torch_flat.cannot_pack(value)

    def slot(self, owner: Any, name: str) -> Slot | None:
        for holder in (owner._parameters, owner._buffers, owner._modules):
            if name in holder:
                return holder, name, holder[name]
        return None

    def pack(self, values: list[torch.Tensor], slots: list[list[Slot]]) -> list[tuple[list[int], PackedPart]]:
        return [(numbers, part) for numbers, part in torch_flat.pack(values, slots)]

    def repoint(self, value: torch.Tensor, view: torch.Tensor) -> None:
        value.data = view.detach()

    # -- sharing ---------------------------------------------------------------------------------------

    def storage(self, value: torch.Tensor) -> object | None:
        try:
            if not value.numel() or value.is_meta:
                return None
            pointer = value.untyped_storage().data_ptr()
        except Exception:
            return None  # lazy, sparse, fake and wrapping tensors have no memory to compare, each in its own words
        return (value.get_device(), pointer) if pointer else None

    def storages(self, values: list[torch.Tensor]) -> list[object | None]:
        # Nothing is asked of the many that are on meta; and what may not even be asked that has no memory to compare.
        try:
            return [None if value.is_meta else self.storage(value) for value in values]
        except Exception:
            return [self.storage(value) for value in values]

    def memory(self, value: torch.Tensor) -> Memory | None:
        itemsize = value.element_size()
        # A conjugated or negated view shows other numbers than its memory holds.
        bits = f"{value.dtype} {value.is_conj()} {value.is_neg()}"
        strides = tuple([stride * itemsize for stride in value.stride()])
        return Memory(int(value.storage_offset()) * itemsize, tuple(value.shape), strides, itemsize, bits)

    def own_gradient(self, value: torch.Tensor) -> bool:
        # What is computed, as a view of a parameter is, has none: it passes it on.
        return isinstance(value, nn.Parameter) or (value.requires_grad and value.is_leaf)

    def view_names(self, cls: type) -> frozenset[str]:
        return torch_views.view_names(cls)

    def view_source(self, owner: Any, name: str) -> tuple[Any, Op] | None:
        return torch_views.view_source(owner, name)

    def declared(self, objects: list[Any]) -> list[tuple[int, Declared]]:
        return torch_keepers.declared(objects)

    def same_bits(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        return torch_values.same_bits(a, b)

    def fingerprint(self, value: torch.Tensor) -> tuple[int, bool] | None:
        return None if torch_filling.cannot_read(value) else torch_values.fingerprint(value)

    def seen_through(self, value: torch.Tensor, op: Op) -> torch.Tensor:
        return torch_values.seen_through(value, op)

    def cannot_tie(self, place: Place, value: torch.Tensor, op: Op) -> str:
        return torch_ties.cannot_tie(place, value, op)

    def tied_elsewhere(self, place: Place, here: list[Place]) -> list[str]:
        return torch_ties.tied_elsewhere(place, here)

    def rebind(self, root: Any, groups: list[Group], keep: Keep | None) -> Any:
        torch_ties.rebind(groups, keep)
        return root

    def unbind(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        torch_ties.unbind(objects, places)
        return root

    def separate(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        torch_ties.separate(objects, places)
        return root

    def guard_ties(self, root: Any, objects: list[Any], groups: list[Group], keep: Keep | None) -> Any:
        torch_ties.guard(objects, groups, keep)
        return root

    def release_ties(self, root: Any, objects: list[Any]) -> Any:
        torch_ties.release(objects)
        return root

    def capture_uses(
        self, nodes: dict[int, list[str]], leaves: dict[str, Any]
    ) -> AbstractContextManager[Callable[[], dict[str, dict[Use, Any]]]]:
        from leafwise.homes.torch_uses import Capture  # torch.overrides is a second of importing that few need

        return Capture(nodes, leaves)


@lru_cache(maxsize=1_000)
def _has_extra_state(cls: type) -> bool:
    return issubclass(cls, nn.Module) and cls.get_extra_state is not nn.Module.get_extra_state


@lru_cache(maxsize=10_000)
def _spec(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, trainable: bool | None) -> Spec:
    size = prod(shape)
    return Spec(tuple(shape), dtype_name(dtype), str(device), size, size * dtype.itemsize, trainable)


def _parametrized_role(lineage: tuple[Any, ...], name: str, ndim: int | None) -> tuple[str | None, Axes]:
    """`layer.parametrizations.weight.original` is the weight of the layer, seen before its parametrization."""
    parametrization, _, layer = lineage[:3]
    direction = type(parametrization[0]).__name__ == "_WeightNorm" and name == "original1"
    if name != "original" and not direction:
        return None, None
    for tensor_name, module in layer.parametrizations.items():
        if module is parametrization:
            return role_of(type(layer), tensor_name, ndim)
    return None, None


def _before_hooks(owner: Any, name: str) -> str:
    """The tensor that a hook computes from this one: pruning and spectral norm keep `weight_orig`, the older
    weight norm `weight_v` beside `weight_g`."""
    if name.endswith("_orig"):
        return name.removesuffix("_orig")
    if name.endswith("_v") and name.removesuffix("v") + "g" in owner._parameters:
        return name.removesuffix("_v")
    return name


HOME = TorchHome()
