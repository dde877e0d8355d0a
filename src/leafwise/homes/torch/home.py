"""PyTorch modules and tensors.

Names are PyTorch's own, in PyTorch's own order: the parameters of a module, its buffers, its children.
"""

import re
import sys
from collections.abc import Callable, Hashable
from functools import lru_cache
from math import prod
from operator import methodcaller
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from leafwise.core.capabilities.averaging import Averaging
from leafwise.core.capabilities.clipping import Clipping
from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.converting import Converting
from leafwise.core.capabilities.filling import Filling
from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.capabilities.grouping import Grouping
from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.packing import Packing
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.searching import Searching
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.capabilities.tying import Tying
from leafwise.core.capabilities.uses import TrackingUses
from leafwise.core.capabilities.vetting import Vetting
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.home import Axes, Capabilities, Home, LeafKind, Memory, Pairs, Spec, Visit
from leafwise.core.path import Entry, Path
from leafwise.core.roles.role_table import add_rows, role_of
from leafwise.errors import WriteError
from leafwise.homes.torch import roles, tensors
from leafwise.homes.torch.checkpoints.state import EXTRA, extras, has_extra_state, writes_its_own
from leafwise.homes.torch.checkpoints.unsupported_tensors import (
    facts,
    facts_of_sharded_tensor,
    is_sharded,
    is_sharded_tensor,
    may_be_marked,
)
from leafwise.homes.torch.parallel import deepspeed_zero, fsdp1
from leafwise.homes.torch.parallel.flat_shards import FLAT, FlatShard, names_with_stand_ins
from leafwise.homes.torch.parallel.sharding import local_nbytes, sharding_of
from leafwise.homes.torch.tensors import cannot_read, dtype_name, holds_nothing, is_lazy, tensor_to_write
from leafwise.homes.torch.ties.tied_views import is_view, plain_class, view_names, views_of

_FORWARD = "_forward_module"
# Wrappers are recognized by their type, because other models may also have a child called `module`. They are looked up
# only in modules that the program has already imported.
_WRAPPERS = (
    ("torch.nn.parallel", "DataParallel", "module"),
    ("torch.nn.parallel", "DistributedDataParallel", "module"),
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "_fsdp_wrapped_module"),
    ("lightning.fabric.wrappers", "_FabricModule", _FORWARD),
    ("lightning_fabric.wrappers", "_FabricModule", _FORWARD),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "module"),
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "ActivationWrapper", "_checkpoint_wrapped_module"),
)


_NAME_OF_BIAS = re.compile(r"(\w+_)?bias(es)?(_\w+)?")


_MANY = 1_000  # tensors on a GPU, whose specs are kept as long as they have not moved


class TorchHome(Home):
    name = "torch"
    walks = "torch.nn.Module"
    arrays_in = "_parameters"
    roles_by_class = True
    capabilities: ClassVar[Capabilities] = {
        Averaging: "leafwise.homes.torch.training.averaging:TorchAveraging",
        Clipping: "leafwise.homes.torch.training.clipping:TorchClipping",
        Comparing: "leafwise.homes.torch.values.comparing:TorchComparing",
        Converting: "leafwise.homes.torch.checkpoints.converting:TorchConverting",
        Distributing: "leafwise.homes.torch.parallel.sharding:TorchDistributing",
        Filling: "leafwise.homes.torch.values.filling:TorchFilling",
        Freezing: "leafwise.homes.torch.training.freezing:TorchFreezing",
        Grouping: "leafwise.homes.torch.training.grouping:TorchGrouping",
        Loading: "leafwise.homes.torch.checkpoints.loading:TorchLoading",
        Measuring: "leafwise.homes.torch.values.measuring:TorchMeasuring",
        Packing: "leafwise.homes.torch.training.packing:TorchPacking",
        Rebuilding: "leafwise.homes.torch.checkpoints.rebuilding:TorchRebuilding",
        Saving: "leafwise.homes.torch.checkpoints.saving:TorchSaving",
        Searching: "leafwise.homes.torch.values.searching:TorchSearching",
        TrackingUses: "leafwise.homes.torch.training.uses:TorchTrackingUses",
        Tying: "leafwise.homes.torch.ties.tying:TorchTying",
        Vetting: "leafwise.homes.torch.checkpoints.vetting:TorchVetting",
        Viewing: "leafwise.homes.torch.ties.tied_views:TorchViewing",
    }
    _last_owner: tuple[int, int, str, str] | None = None
    _last_positions: dict[str, int]

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        if issubclass(cls, nn.Module):
            return "node"
        return "leaf" if issubclass(cls, torch.Tensor) else None

    def visit(self, obj: nn.Module) -> Visit:
        # The inner loop of every walk. Most modules have no buffers, and almost none has a child that is None.
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

    def visitor(self, cls: type, path_of: Callable[[Any], Path | None]) -> Callable[[Any], Visit | None]:
        visit: Callable[[Any], Visit] = self._visit_with_views if view_names(cls) else self.visit
        if may_be_marked() and issubclass(cls, nn.Module):
            visit = self._with_stand_ins(visit, cls)
        if self.wrapped_child(cls) == _FORWARD:
            visit = self._visit_forward
        has_extra, writes = has_extra_state(cls), writes_its_own(cls)
        if not has_extra and not writes:
            return visit

        def visit_all(obj: Any) -> Visit:
            leaves, children, _ = visit(obj)
            saved_besides = [(EXTRA, obj.get_extra_state())] if has_extra else []
            if writes:
                saved_besides += extras(obj).items()
            return leaves, [*children, *saved_besides], "buffer"

        return visit_all

    def _visit_forward(self, obj: Any) -> Visit:
        # Fabric keeps the model twice: the original, and the one that forward calls.
        leaves, _, below = self.visit(obj)
        return leaves, [(_FORWARD, obj._modules[_FORWARD])], below

    def _visit_with_views(self, obj: Any) -> Visit:
        ((kind, parameters), *buffers), children, below = self.visit(obj)
        views = views_of(obj)
        shown = [(name, views[name].shown() if held is None and name in views else held) for name, held in parameters]
        return ((kind, shown), *buffers), children, below

    def _with_stand_ins(self, visit: Callable[[Any], Visit], cls: type) -> Callable[[Any], Visit]:
        """`visit` for a model whose parameters may be flattened and split over processes: shows what stands for
        them."""
        joins = fsdp1.is_fsdp1(cls)

        def visit_with_stand_ins(obj: Any) -> Visit:
            if joins:
                fsdp1.register(obj)
            deepspeed_zero.register(obj)
            stand_ins = names_with_stand_ins(obj)
            if stand_ins is None:
                return visit(obj)
            ((kind, parameters), *buffers), children, below = visit(obj)
            shown = dict(parameters)
            shown |= {name: stands(shown.get(name)) for name, stands in stand_ins.items()}
            return ((kind, shown.items()), *buffers), children, below

        return visit_with_stand_ins

    def type_name(self, obj: Any) -> str:
        return plain_class(type(obj)).__name__

    def wrapped_child(self, cls: type) -> str | None:
        for module, name, child in _WRAPPERS:
            wrapper = getattr(sys.modules.get(module), name, None)
            if wrapper is not None and issubclass(cls, wrapper):
                return child
        return None

    def current(self, owner: Any, name: str, value: Any) -> Any:
        # Moving a module replaces its buffers, and `to_empty` or `assign=True` its parameters.
        # Without `get`, which the dicts of a scripted module do not have.
        held = owner._parameters[name] if name in owner._parameters else None  # noqa: SIM401
        if held is None:
            held = owner._buffers[name] if name in owner._buffers else None  # noqa: SIM401
        if held is None and is_view(owner, name):
            held = getattr(owner, name)
        stand_ins = names_with_stand_ins(owner)
        if stand_ins is not None and name in stand_ins:
            held = stand_ins[name](held)
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
        """The position of each child, because a slice of a Sequential keeps the old names.

        The last answer is cached, because the paths of all children are usually needed one after another.
        """
        modules = owner._modules
        key = id(owner), len(modules), next(iter(modules)), next(reversed(modules))
        if key != self._last_owner:
            self._last_positions = {name: position for position, name in enumerate(modules)}
            self._last_owner = key
        return self._last_positions

    def role(
        self, owner: Any, name: str, value: torch.Tensor, lineage: Callable[[], tuple[Any, ...]]
    ) -> tuple[str | None, Axes]:
        ndim = None if is_lazy(value) else value.dim()
        if name.startswith("original") and type(owner).__name__ == "ParametrizationList":
            return _parametrized_role(lineage(), name, ndim)
        role = role_of(plain_class(type(owner)), _before_hooks(owner, name), ndim)
        if role[0] is None and ndim != 1 and isinstance(value, nn.Parameter) and _NAME_OF_BIAS.fullmatch(name):
            return "bias", None  # of many experts or heads, in one array
        return role

    def role_key(self, owner: Any, name: str, value: torch.Tensor) -> Hashable | None:
        if name.startswith("original") or name.endswith(("_orig", "_v")):
            return None  # it has the role of the tensor that is computed from it
        return type(owner), name, None if is_lazy(value) else value.dim(), isinstance(value, nn.Parameter)

    # -- a leaf ----------------------------------------------------------------------------------------

    def spec(self, value: torch.Tensor) -> Spec:
        if type(value) is torch.Tensor and not value.__dict__ and not value.is_nested:
            return _plain_spec(value.shape, value.dtype, value.device, True if value.requires_grad else None)
        if is_sharded_tensor(value):
            return _plain_spec(*facts_of_sharded_tensor(value), None)
        trainable = True if value.requires_grad else False if isinstance(value, nn.Parameter) else None
        if is_lazy(value):
            return Spec(None, dtype_name(value.dtype), str(value.device), 0, 0, trainable)
        if value.is_nested:
            size = value.numel()
            return Spec(None, dtype_name(value.dtype), str(value.device), size, size * value.element_size(), trainable)
        if (true_facts := facts(value)) is not None:
            shape, dtype, size, nbytes = true_facts
            return Spec(shape, dtype or dtype_name(value.dtype), str(value.device), size, nbytes, trainable)
        # Cached, because models repeat a few shapes thousands of times.
        spec = _plain_spec(value.shape, value.dtype, value.device, trainable)
        if is_sharded(value):
            return spec._replace(sharding=sharding_of(value), local_nbytes=local_nbytes(value))
        return spec

    def specs(self, values: list[torch.Tensor]) -> list[Spec]:
        if len(values) >= _MANY and values[0].is_cuda:
            from leafwise.homes.torch.gpu.tables import kept_specs  # late, because it takes long to import

            return kept_specs(values, self._specs)
        return self._specs(values)

    def _specs(self, values: list[torch.Tensor]) -> list[Spec]:
        # Most tensors are plain parameters, which need none of the checks in `spec`.
        marked = may_be_marked()
        return [
            _plain_spec(value.shape, value.dtype, value.device, value.requires_grad)
            if (cls := type(value)) is nn.Parameter and not (marked and value.__dict__)
            else _plain_spec(value.shape, value.dtype, value.device, True if value.requires_grad else None)
            if cls is torch.Tensor and not value.__dict__ and not value.is_nested
            else self.spec(value)
            for value in values
        ]

    def grads(self, values: list[torch.Tensor]) -> list[Any]:
        # PyTorch warns if the gradient of a computed tensor is read. A Parameter is never computed, and checking the
        # type is faster than `is_leaf`.
        return [
            value.grad if type(value) is nn.Parameter or value.is_leaf or value.retains_grad else None
            for value in values
        ]

    def cannot_read(self, value: torch.Tensor) -> str:
        return cannot_read(value)

    def read(self, value: torch.Tensor, index: Any = ()) -> Any:
        # Only the part is copied from another device, where PyTorch supports the index.
        parts = index if isinstance(index, tuple) else (index,)
        has_index = all(isinstance(part, slice) and (part.step or 1) > 0 for part in parts)
        if parts and has_index and tensors.is_elsewhere(value) and not cannot_read(value):
            return tensors.as_numpy(value.detach()[parts])
        array = tensors.as_numpy(value)
        return array[index] if parts else array

    def write(self, value: torch.Tensor, array: Any) -> None:
        if reason := holds_nothing(value) or (FLAT if isinstance(value, FlatShard) else ""):
            raise WriteError(f"cannot write: {reason}")
        source = tensor_to_write(array, value)
        # The name of the dtype and a plain tuple, because a subclass may compare dtypes and shapes in its own way.
        theirs, ours = [(dtype_name(tensor.dtype), tuple(tensor.shape)) for tensor in (source, value)]
        if theirs != ours:
            raise WriteError(f"cannot write {theirs[0]} of shape {theirs[1]} into {ours[0]} of shape {ours[1]}")
        try:
            with torch.no_grad():
                value.copy_(source)
            deepspeed_zero.update_master(value)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            reason = str(error).rstrip(".")
            raise WriteError(f"cannot write: {reason}") from error

    # -- memory ----------------------------------------------------------------------------------------

    def storages(self, values: list[torch.Tensor]) -> list[object | None]:
        # The fast way first, for tensors on meta. Some tensors raise even for `is_meta`.
        try:
            return [None if value.is_meta else _storage(value) for value in values]
        except Exception:
            return [_storage(value) for value in values]

    def memory(self, value: torch.Tensor) -> Memory:
        itemsize = value.element_size()
        # The numbers in the memory of a conjugated or negated view are not those that the view shows.
        bits = f"{value.dtype} {value.is_conj()} {value.is_neg()}"
        strides = tuple([stride * itemsize for stride in value.stride()])
        return Memory(int(value.storage_offset()) * itemsize, tuple(value.shape), strides, itemsize, bits)

    def own_gradient(self, value: torch.Tensor) -> bool:
        # A computed tensor, such as a view of a parameter, passes its gradient on.
        return isinstance(value, nn.Parameter) or (value.requires_grad and value.is_leaf)


def _storage(value: torch.Tensor) -> object | None:
    try:
        if not value.numel() or value.is_meta:
            return None
        pointer = value.untyped_storage().data_ptr()
    except Exception:
        return None  # lazy, sparse, fake and wrapping tensors have no memory to compare, and raise different errors
    return (value.get_device(), pointer) if pointer else None


@lru_cache(maxsize=10_000)
def _plain_spec(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, trainable: bool | None) -> Spec:
    size = prod(shape)
    return Spec(tuple(shape), dtype_name(dtype), str(device), size, size * dtype.itemsize, trainable)


def _parametrized_role(lineage: tuple[Any, ...], name: str, ndim: int | None) -> tuple[str | None, Axes]:
    """`layer.parametrizations.weight.original` has the role of the weight of the layer, before its parametrization."""
    parametrization, _, layer = lineage[:3]
    direction = type(parametrization[0]).__name__ == "_WeightNorm" and name == "original1"
    if name != "original" and not direction:
        return None, None
    for tensor_name, module in layer.parametrizations.items():
        if module is parametrization:
            return role_of(type(layer), tensor_name, ndim)
    return None, None


def _before_hooks(owner: Any, name: str) -> str:
    """The name of the tensor that a hook computes from this one: pruning and spectral norm keep `weight_orig`, the
    older weight norm keeps `weight_v` beside `weight_g`."""
    if name.endswith("_orig"):
        return name.removesuffix("_orig")
    if name.endswith("_v") and name.removesuffix("v") + "g" in owner._parameters:
        return name.removesuffix("_v")
    return name


add_rows(roles.ROWS)
HOME = TorchHome()
