"""Comparing tensors on a GPU that were compared before: only what may have changed since is checked.

For thousands of tensors, finding out their shapes and whether they can be compared takes much longer than comparing
them, so that the facts about the last few are kept. A tensor that has moved, or has another shape or dtype, is noticed
before anything is launched. Memory that is still at the same address is not measured again: PyTorch moves it when it is
resized.
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from threading import Lock
from typing import Any

import torch

from leafwise.core.capabilities.comparing import RepeatedComparison, RepeatedResult
from leafwise.core.home import Spec
from leafwise.homes.torch.checkpoints.unsupported_tensors import may_be_marked
from leafwise.homes.torch.gpu.device_comparing import columns_at_once, how_transposed
from leafwise.homes.torch.gpu.device_streams import ACTION
from leafwise.homes.torch.gpu.launching import check_not_capturing, start_kernels
from leafwise.homes.torch.gpu.snapshots import are_negated, have_plain_memory, have_plain_types, same, snapshot
from leafwise.kernels.triton import cuda_comparing
from leafwise.kernels.triton.cuda_comparing import PairTable

Tensors = list[torch.Tensor]

_MOST_KEPT = 4


class _Compared:
    """Pairs of tensors with the same shapes and dtypes that were compared, without the tensors: the snapshots of both
    sides, and their specs."""

    def __init__(self, facts: Any, other_facts: Any, specs: list[Spec], other_specs: list[Spec]) -> None:
        self.facts, self.other_facts, self.specs, self.other_specs = facts, other_facts, specs, other_specs
        # Once it was used: another stream might use it before the device has made it.
        self.table: PairTable | None = None


_kept: dict[tuple[Any, ...], _Compared] = {}
_kept_lock = Lock()


def keep(firsts: Tensors, seconds: Tensors, specs_of: Callable[[Tensors], list[Spec]]) -> None:
    """Keeps the facts about tensors that were compared; nothing if not all of them are plain, with the same shapes and
    dtypes on both sides, and on a device where kernels compare them. `specs_of` returns the specs of tensors."""
    specs, other_specs = specs_of(firsts), specs_of(seconds)
    shapes = {(id(spec), id(other)): (spec, other) for spec, other in zip(specs, other_specs, strict=True)}
    if any(spec.shape != other.shape or spec.dtype != other.dtype for spec, other in shapes.values()):
        return
    if not have_plain_memory(firsts) or not have_plain_memory(seconds) or columns_at_once(firsts, seconds) is None:
        return
    key = _key(firsts, seconds)
    with _kept_lock:
        _kept.pop(key, None)
        while len(_kept) >= _MOST_KEPT:
            del _kept[next(iter(_kept))]
        _kept[key] = _Compared(snapshot(firsts), snapshot(seconds), specs, other_specs)


def start_again(firsts: Tensors, seconds: Tensors) -> RepeatedComparison | None:
    """See `Comparing.compare_again`."""
    compared = _kept.get(_key(firsts, seconds)) if len(firsts) == len(seconds) else None
    if compared is None or not have_plain_types(firsts) or not have_plain_types(seconds):
        return None
    check_not_capturing("compare values")
    device = firsts[0].device
    if not same(compared.facts, snapshot(firsts)) or not same(compared.other_facts, snapshot(seconds)):
        return None
    try:
        table = compared.table or _new_table(firsts, seconds, device)
        wait = None if table is None else start_kernels(device, partial(cuda_comparing.compare, table), ACTION)
    except torch.cuda.OutOfMemoryError:
        return None
    if wait is None:
        return None

    def wait_for_result() -> RepeatedResult | None:
        # What does not decide which memory is read is checked while the kernels run.
        if not _are_still_plain(firsts) or not _are_still_plain(seconds):
            return None
        try:
            outcomes = wait()
            compared.table = table
            transposed = [
                number
                for number in outcomes.may_be_transposed()
                if how_transposed(firsts[number], seconds[number], device) is not None
            ]
            return RepeatedResult(list(outcomes.changed.tolist()), outcomes.measured_comparisons, transposed)
        except torch.cuda.OutOfMemoryError:  # the caller compares in another way, which needs less memory
            return None

    return RepeatedComparison(compared.specs, compared.other_specs, wait_for_result)


def _key(firsts: Tensors, seconds: Tensors) -> tuple[Any, ...]:
    try:
        return len(firsts), firsts[0].device, firsts[0].data_ptr(), seconds[0].data_ptr()
    except (RuntimeError, AttributeError):  # a tensor without memory, or something else
        return ()


def _new_table(firsts: Tensors, seconds: Tensors, device: torch.device) -> PairTable | None:
    columns = columns_at_once(firsts, seconds)
    if columns is None:
        return None
    with torch.inference_mode(False), torch.no_grad():  # it may be used again outside of inference mode
        return cuda_comparing.table_of(columns[0], device)


def _are_still_plain(values: Tensors) -> bool:
    """Whether the numbers of tensors that have not moved are still those in their memory."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return not are_negated(values) and not (may_be_marked() and any(map(attrgetter("__dict__"), values)))
