"""What kernels need to know about tensors on a GPU, kept as long as the tensors stay where they are.

The same tensors are measured and clipped again and again. Checking them and preparing their table takes longer than
measuring them, so the last few tables are kept.
"""

from collections.abc import Callable
from operator import attrgetter
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from leafwise.core.home import Spec
from leafwise.core.memory.runs import Run
from leafwise.homes.torch.gpu.snapshots import are_marked, are_plain, have_plain_types, same, snapshot
from leafwise.homes.torch.tensors import dtype_name
from leafwise.kernels.cpu import lies_densely

T = TypeVar("T")
_MOST_TABLES = 8  # values and gradients, on a few devices


def is_run(value: torch.Tensor) -> bool:
    """Whether the elements of a tensor fill their memory without gaps, so that kernels can read them in any order."""
    return (value.is_contiguous() or lies_densely(value.shape, value.stride())) and not value.is_neg()


def run_of(value: torch.Tensor) -> Run:
    return Run(value.data_ptr(), value.numel(), dtype_name(value.dtype))


class _Kept(NamedTuple, Generic[T]):
    facts: Any  # the snapshot of the tensors
    table: T


class KeptTables(Generic[T]):
    """The last tables that were made. A stream has its own tables, because the memory of a table may only be used in
    the order of one stream."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], _Kept[T]] = {}
        self._lock = Lock()

    def find(self, values: list[torch.Tensor], may_be_negated: bool = False) -> T | None:
        """The table of these tensors, if every one of them is plain, and where it was, with its shape and dtype. Then
        nothing else about them needs to be checked. None if not. What does not read values may accept tensors that
        `may_be_negated`."""
        is_plain = have_plain_types(values) if may_be_negated else are_plain(values)
        kept = self._kept.get(_key(values)) if self._kept and is_plain else None
        return kept.table if kept is not None and same(kept.facts, snapshot(values)) else None

    def get(self, values: list[torch.Tensor], make: Callable[[], T]) -> T:
        """The table of these tensors, which are all on one device: a kept one, or a new one that `make` returns."""
        key, facts = _key(values), snapshot(values)
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is None or not same(kept.facts, facts):
                with torch.inference_mode(False), torch.no_grad():  # it may be used again outside of inference mode
                    kept = _Kept(facts, make())
            self._keep(key, kept)
        return kept.table

    def put(self, values: list[torch.Tensor], table: T) -> None:
        """Keeps a table of these tensors in place of an earlier one."""
        with self._lock:
            self._keep(_key(values), _Kept(snapshot(values), table))

    def _keep(self, key: tuple[Any, ...], kept: _Kept[T]) -> None:
        while len(self._kept) >= _MOST_TABLES:
            del self._kept[next(iter(self._kept))]
        if kept.facts is not None:
            self._kept[key] = kept


_specs: KeptTables[tuple[bytes, list[Spec]]] = KeptTables()


def kept_specs(values: list[torch.Tensor], specs_of: Callable[[list[torch.Tensor]], list[Spec]]) -> list[Spec]:
    """What `specs_of` returns for tensors on a GPU, from before if they are plain and have not moved."""
    if are_marked(values):
        return specs_of(values)
    trained = bytes(map(attrgetter("requires_grad"), values))
    kept = _specs.find(values, may_be_negated=True)
    if kept is None or kept[0] != trained:
        kept = trained, specs_of(values)
        _specs.put(values, kept)
    return list(kept[1])


def _key(values: list[torch.Tensor]) -> tuple[Any, ...]:
    if not values:
        return ()
    device = values[0].device
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    try:
        return device, stream, len(values), values[0].data_ptr()
    except RuntimeError:  # sparse tensors and others without memory of their own
        return device, stream, len(values)
