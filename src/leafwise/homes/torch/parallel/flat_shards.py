"""Parameters that a library has flattened and split over processes, so that each has a range of their elements.

FSDP1 and DeepSpeed ZeRO-3 leave tensors in the model that have one axis, or no elements, and their own records of the
rest. A `FlatShard` stands for such a tensor in a walk: it has the true shape, and knows which elements are in this
process. It is made by the file of the library, which registers it:

- by `stand_in`, for a tensor of the model, which optimizers also step
- by `stand_in_at`, for a name of a module, where there may be no tensor

Nothing here keeps a model alive.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from leafwise.core.memory.sharding import LocalPart, Sharding, flat_boxes
from leafwise.core.path import escape
from leafwise.errors import Unsupported

FLAT = (
    "each process has only a range of its elements; use leafwise in every process, which works on these ranges, or "
    "gather it with the library that has split it"
)


class FlatPlace(NamedTuple):
    """Which elements of an array a process has: those from number `start` to before `stop`.

    They are numbered in C order; if `order` is given, after the axes were put into that order, as in the memory of a
    tensor that is not contiguous. `group` is the process group of all ranks that have elements or copies of them, and
    `has_first_copy` is whether this process has the first of several copies.
    """

    shape: tuple[int, ...]
    start: int
    stop: int
    group: Any
    sharding: Sharding
    has_first_copy: bool = True
    order: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """The number of elements in this process."""
        return self.stop - self.start

    def is_like(self, other: "FlatPlace") -> bool:
        """Whether two places are the same elements on every rank."""
        return self[:3] == other[:3] and self.order == other.order and self.sharding == other.sharding

    def of_scalar(self) -> "FlatPlace":
        """The place of a number that belongs to the array: with its first element."""
        return self._replace(shape=(), start=0, stop=int(self.start == 0 < self.stop), order=None)

    def parts(self, local: torch.Tensor) -> list[LocalPart]:
        """The boxes of these elements, over the memory of the local tensor."""
        order = range(len(self.shape)) if self.order is None else self.order
        back = [order.index(axis) for axis in range(len(order))]
        parts = []
        for box in flat_boxes(tuple(self.shape[axis] for axis in order), self.start, self.stop):
            value = local[box.local : box.local + prod(box.shape)].view(box.shape).permute(back)
            first, shape = (tuple(numbers[axis] for axis in back) for numbers in (box.first, box.shape))
            parts.append(LocalPart(value, first, shape))
        return parts


class FlatOwner:
    """Where the local elements of a `FlatShard` are. By default, in a tensor that belongs to nobody else."""

    def __init__(self, tensor: torch.Tensor | None = None) -> None:
        self._tensor = tensor

    def local(self) -> torch.Tensor:
        """The elements in this process, with one axis: never a copy, and not followed by autograd."""
        assert self._tensor is not None
        return self._tensor

    def cannot_use(self) -> str:
        """Why `local` does not have the values; empty if it has."""
        return ""

    def cannot_change(self) -> str:
        """Why values must not be written into `local`, except by `lw.load`; empty if they may."""
        return ""

    def cannot_load(self) -> str:
        """Why `lw.load` must not write values into `local`; empty if it may."""
        return ""

    def after_load(self) -> None:
        """Called when `lw.load` has written values into `local`, on every rank, even if it has no elements."""

    def stepped(self) -> torch.Tensor | None:
        """The tensor that an optimizer steps to change this parameter, perhaps together with others; None if it is not
        a parameter."""
        return None

    def is_joined(self) -> bool:
        """Whether the library has joined the parameter with others, so that optimizers step them together."""
        return False

    def stepped_with_it(self) -> Iterator[torch.Tensor]:
        """Tensors with elements in this process that an optimizer steps, and that get a gradient whenever this
        parameter does."""
        yield from ()

    def part_of(self, state: torch.Tensor) -> torch.Tensor | None:
        """The elements of this parameter in state that an optimizer has for `stepped`, over its memory. None if the
        state does not have an element for each element of `stepped`."""
        return None

    def empty_state(self, dtype: torch.dtype) -> torch.Tensor:
        """New state of zeros for `stepped`; only if it is joined."""
        raise Unsupported("torch", "restore the state of a tensor", "it is not a parameter")

    def cannot_train_alone(self) -> str:
        """Why a parameter cannot be frozen, or put into a group, without others; empty if it can."""
        return ""

    def requires_grad(self) -> bool:
        return False

    def set_requires_grad(self, requires_grad: bool) -> None:
        raise Unsupported("torch", "train this tensor", "it is not a parameter")

    def grad(self) -> "FlatShard | None":
        return None

    def drop_grad(self) -> None:
        """Sets the gradient to None."""


class FlatShard(torch.Tensor):
    """A tensor of which each process has a range of elements. It has the shape and dtype of the whole tensor and no
    values: every operation raises an error. `local` has the elements in this process."""

    place: FlatPlace
    owner: FlatOwner
    _is_param: bool  # makes it an instance of nn.Parameter

    @staticmethod
    def __new__(cls, place: FlatPlace, owner: FlatOwner, like: torch.Tensor, is_parameter: bool = False) -> "FlatShard":
        shard: FlatShard = torch.Tensor._make_wrapper_subclass(
            cls, place.shape, dtype=like.dtype, device=like.device, requires_grad=False
        )
        shard.place, shard.owner = place, owner
        shard._is_param = is_parameter
        return shard

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    @property
    def local(self) -> torch.Tensor:
        return self.owner.local()

    @property
    def requires_grad(self) -> bool:
        return self.owner.requires_grad()

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.owner.set_requires_grad(requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> "FlatShard":
        self.owner.set_requires_grad(requires_grad)
        return self

    @property
    def grad(self) -> "FlatShard | None":
        return self.owner.grad()

    @grad.setter
    def grad(self, grad: torch.Tensor | None) -> None:
        if grad is not None:
            raise Unsupported("torch", "set the gradient of a tensor", FLAT)
        self.owner.drop_grad()

    def __repr__(self) -> str:  # type: ignore[override]
        start, stop = self.place.start, self.place.stop
        return escape(
            f"FlatShard(shape={tuple(self.shape)}, dtype={self.dtype}, elements {start:,} to {stop:,} here, "
            f"{self.place.sharding})"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise Unsupported("torch", "pickle or copy a tensor", FLAT)

    def __deepcopy__(self, memo: Any) -> Any:
        raise Unsupported("torch", "pickle or copy a tensor", FLAT)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise Unsupported("torch", f"compute {func} of a tensor that is split over processes", FLAT)


def new_shard(place: FlatPlace, local: torch.Tensor) -> FlatShard:
    """A tensor whose local elements are in this one: state of an optimizer, a gradient, or a copy."""
    return FlatShard(place, FlatOwner(local), local)


# -- what stands for what ------------------------------------------------------------------------------

_of_tensor: Any = WeakTensorKeyDictionary()  # parameters of a library, and the FlatShards that stand for them
_joined_ids: set[int] = set()  # the ids of those for which several stand; other tensors may get them later
StandIn = Callable[[Any], Any]
_of_names: Any = WeakKeyDictionary()  # modules, and the names in them that have stand-ins


def stand_in(tensor: torch.Tensor, stands: Callable[[int], Any], count: int = 1) -> None:
    """From now on, the tensors that `stands` returns for the numbers below `count` stand for this tensor: one, or
    several if the library has joined them in it. It must keep neither the tensor nor the model alive."""
    _of_tensor[tensor] = stands, count
    if count != 1:
        _joined_ids.add(id(tensor))


def stand_in_at(module: nn.Module, name: str, stands: StandIn) -> None:
    """From now on, a walk shows at this name what `stands` returns. It gets the tensor of the module at this name, or
    None, and must not keep the module alive."""
    _of_names.setdefault(module, {})[name] = stands


def standing_for(tensor: torch.Tensor) -> list[Any]:
    """The tensors that stand for a tensor in a walk; usually the tensor itself."""
    known = _of_tensor.get(tensor) if len(_of_tensor) else None
    return [tensor] if known is None else [known[0](number) for number in range(known[1])]


def standing_at(tensors: list[Any], position: int) -> tuple[Any, Any]:
    """The tensor and its stand-in at a position among the stand-ins of all tensors, in their order."""
    for tensor in tensors if _joined_ids else ():  # otherwise, each has one stand-in
        count = _of_tensor.get(tensor, (None, 1))[1] if id(tensor) in _joined_ids else 1
        if position < count:
            return tensor, _of_tensor[tensor][0](position) if tensor in _of_tensor else tensor
        position -= count
    return tensors[position], standing_for(tensors[position])[0]


def is_shown_itself(tensor: torch.Tensor) -> bool:
    """Whether a tensor that has a stand-in is whole at the moment, and shown itself."""
    return len(_of_tensor) > 0 and tensor in _of_tensor and standing_for(tensor)[0] is tensor


def names_with_stand_ins(module: nn.Module) -> dict[str, StandIn] | None:
    """For the names of a module whose tensors are not shown themselves, what gets the ones that are."""
    return _of_names.get(module) if _of_names.data else None  # quick if there are none, as for most models
