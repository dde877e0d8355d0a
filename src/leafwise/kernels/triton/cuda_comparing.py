"""Comparing pairs of arrays on a GPU: one launch for all of them, and one copy back."""

import math
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from leafwise.core.dtypes import is_float
from leafwise.core.results.comparison import Comparison
from leafwise.kernels.dtypes import KERNELS, check_known, is_byte_float, item_bytes, values_of_bytes
from leafwise.kernels.triton.launches import host_memory, numbered
from leafwise.kernels.triton.triton_comparing import FIELDS, ROWS, compare_carefully, compare_whole_chunks, fold_pairs

CHUNK = 1 << 16  # elements
# Elements that a program processes at a time, and the number of warps.
_BLOCK, _WARPS = 512, 4
_CAREFUL_BLOCK, _CAREFUL_WARPS = 256, 4
_CAREFUL_PROGRAMS = 1056  # eight for each multiprocessor of a large GPU
# Floats for which kernels know whether one side is a cast of the other.
CASTABLE = frozenset({"float64", "float32", "float16", "bfloat16"})
# The rows of the result: counts, the bits of doubles, and integers.
_COUNTED = [ROWS.index(name) for name in ("changed", "nonfinite", "nonfinite_changed", "forth", "back", "transposed")]
_DOUBLES = [ROWS.index(name) for name in ("distance", "norm", "other_norm", "dot", "largest")]
_POWERS = [ROWS.index(name) for name in ("distance_power", "norm_power", "other_power")]


class PairColumns(NamedTuple):
    """Pairs of contiguous arrays on one device, with an entry for each pair. `sides` is the number of rows of a square
    matrix, for which it is also tested whether it may be transposed, and otherwise zero."""

    addresses: list[int]
    other_addresses: list[int]
    sizes: list[int]
    dtypes: list[str]
    other_dtypes: list[str]
    sides: list[int]


class Outcomes:
    """How pairs compare. Lists with an entry for each pair are made when they are first needed, because a model has
    thousands of pairs, of which often only a few changed.

    `changed` are the numbers of the pairs that changed, as a NumPy array.
    """

    def __init__(self, sizes: list[int], rows: Any, with_norms: bool) -> None:
        """From the rows of the result, of which this keeps copies."""
        changed, _, _, self._forth, self._back, self._transposed = rows[_COUNTED]
        self.changed = np.flatnonzero(changed)
        self._sizes = sizes
        self._measured = np.flatnonzero(sizes) if with_norms else self.changed  # the pairs with figures
        self._figures = rows[:, self._measured]

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """The figures of each pair."""
        same = {size: Comparison(size, 0) for size in set(self._sizes)}
        comparisons = [same[size] for size in self._sizes]
        places = self._measured.tolist()
        figures = _comparisons([self._sizes[place] for place in places], self._figures) if places else []
        for place, comparison in zip(places, figures, strict=True):
            comparisons[place] = comparison
        return comparisons

    @cached_property
    def forth(self) -> list[bool]:
        """Whether casting the first side gives the second, for pairs of different dtypes."""
        return list((self._forth != 0).tolist())

    @cached_property
    def back(self) -> list[bool]:
        """Whether casting the second side gives the first, for pairs of different dtypes."""
        return list((self._back != 0).tolist())

    @cached_property
    def transposed(self) -> list[bool]:
        """Whether samples of a square matrix agree with the other side transposed."""
        return list((self._transposed != 0).tolist())


class PairTable(NamedTuple):
    """Where pairs of arrays are on a device, in chunks. It can be used again as long as no array moves."""

    columns: PairColumns
    chunk: int
    kinds: int  # one bit for each kind that occurs on the first sides
    other_kinds: int
    is_mixed: bool  # whether the dtypes of a pair differ
    whole_count: int
    careful_count: int
    whole: Any  # the numbers of full chunks of floats of at most 32 bits; from here on, everything is on the device
    careful: Any  # the numbers of the other chunks
    addresses: Any  # of each chunk
    other_addresses: Any
    sizes: Any
    pairs: Any
    sides: Any  # of each pair
    of_pairs: tuple[Any, Any, Any]  # for each pair: both kinds, the values of its bytes
    first_chunks: Any  # of each pair, and the number of all chunks
    spare: list[Any]  # memory of the host, for reuse

    @property
    def chunks(self) -> int:
        return self.whole_count + self.careful_count


def can_compare(dtype: str, other: str) -> bool:
    """Whether the kernels compare arrays of two dtypes."""
    return dtype in KERNELS if dtype == other else dtype in CASTABLE and other in CASTABLE


def table_of(columns: PairColumns, device: Any, chunk: int = CHUNK) -> PairTable:
    """The table of pairs of arrays that are all on one device."""
    if chunk % _BLOCK:
        raise ValueError(f"a chunk is a multiple of a block, and {chunk} is not")
    distinct = set(zip(columns.dtypes, columns.other_dtypes, strict=True))
    check_known({dtype for dtypes in distinct for dtype in dtypes})
    if wrong := [dtypes for dtypes in distinct if not can_compare(*dtypes)]:
        raise TypeError(f"kernels do not compare {wrong[0][0]} with {wrong[0][1]}")
    of_pairs = _PairRows.of(columns, chunk)
    there = of_pairs.on_device(device)
    pairs, starts = numbered(there.chunks, int(of_pairs.chunks.sum()))
    whole_pairs, whole = numbered(there.whole, int(of_pairs.whole.sum()))
    careful_pairs, careful = numbered(there.chunks - there.whole, int((of_pairs.chunks - of_pairs.whole).sum()))
    first_chunks = torch.zeros(len(columns.sizes) + 1, dtype=torch.int64, device=device)
    torch.cumsum(there.chunks, 0, out=first_chunks[1:])
    starts *= chunk
    values = np.zeros(1, np.float32)
    if any(is_byte_float(dtype) for dtype, _ in distinct):
        values = values_of_bytes(columns.dtypes)
    return PairTable(
        columns,
        chunk,
        sum({1 << KERNELS[dtype] for dtype, _ in distinct}),
        sum({1 << KERNELS[dtype] for _, dtype in distinct}),
        any(dtype != other for dtype, other in distinct),
        len(whole),
        len(careful),
        (whole + first_chunks[whole_pairs]).int(),
        (careful + (first_chunks[:-1] + there.whole)[careful_pairs]).int(),
        there.addresses[pairs] + starts * there.items[pairs],
        there.other_addresses[pairs] + starts * there.other_items[pairs],
        torch.clamp(there.sizes[pairs] - starts, max=chunk).int(),
        pairs.int(),
        there.sides,
        (there.kinds.int(), there.other_kinds.int(), torch.from_numpy(values).to(device)),
        first_chunks,
        [],
    )


class _PairRows(NamedTuple):
    """What the columns of a table are computed from, with an element for each pair: NumPy arrays, or tensors on the
    device. There are few of them, so that little is copied, and the device computes the many numbers of chunks."""

    addresses: Any
    other_addresses: Any
    sizes: Any
    items: Any  # bytes of an element
    other_items: Any
    kinds: Any
    other_kinds: Any
    sides: Any
    chunks: Any
    whole: Any  # chunks that are full, aligned, and narrow floats

    @classmethod
    def of(cls, columns: PairColumns, chunk: int) -> "_PairRows":
        # As unsigned integers, because an address may use all bits.
        addresses, others = (
            np.array(side, np.uint64).view(np.int64) for side in (columns.addresses, columns.other_addresses)
        )
        sizes = np.array(columns.sizes, np.int64)
        both = [*zip(columns.dtypes, columns.other_dtypes, strict=True)]
        facts = {
            dtypes: (*map(item_bytes, dtypes), *(KERNELS[dtype] for dtype in dtypes), _is_narrow(*dtypes))
            for dtypes in set(both)
        }
        items, other_items, kinds, other_kinds, is_narrow = (
            np.array([facts[dtypes] for dtypes in both], np.int64).reshape(-1, 5).T
        )
        is_quick = (is_narrow > 0) & ((addresses | others) % 16 == 0)
        whole = np.where(is_quick, sizes // chunk, 0)
        sides, chunks = np.array(columns.sides, np.int64), (sizes + chunk - 1) // chunk
        return cls(addresses, others, sizes, items, other_items, kinds, other_kinds, sides, chunks, whole)

    def on_device(self, device: Any) -> "_PairRows":
        # Copied at once, and from pinned memory, so that the copy does not wait for kernels that run already.
        rows = np.stack(self)
        here = host_memory(rows.size, torch.int64, torch.device(device)).view(rows.shape)
        here.numpy()[...] = rows
        return _PairRows._make(here.to(device, non_blocking=True))


def _is_narrow(dtype: str, other: str) -> bool:
    """Whether both dtypes are floats of at most 32 bits."""
    return is_float(dtype) and is_float(other) and max(item_bytes(dtype), item_bytes(other)) <= 4


def compare(table: PairTable, with_norms: bool = False) -> Callable[[], Outcomes]:
    """Starts comparing the pairs of a table. The function that it returns waits for the result. Norms of pairs that are
    the same are nan, unless `with_norms`."""
    pairs, chunks = len(table.columns.sizes), table.chunks
    device = table.addresses.device
    by_chunk = torch.empty((FIELDS + 1) * chunks, dtype=torch.int64, device=device)
    words = FIELDS * pairs + 1
    results = torch.zeros(words, dtype=torch.int64, device=device)
    counter = results[words - 1 :]
    kinds, other_kinds, values = table.of_pairs
    options = {
        "KINDS": table.kinds,
        "OTHER_KINDS": table.other_kinds,
        "MIXED": table.is_mixed,
        "enable_fp_fusion": True,
    }
    if table.whole_count:
        compare_whole_chunks[(table.whole_count,)](
            table.whole, table.addresses, table.other_addresses, table.pairs, kinds, other_kinds, values,
            by_chunk, counter, chunks, CHUNK=table.chunk, BLOCK=_BLOCK, num_warps=_WARPS, **options,
        )  # fmt: skip
    if chunks:
        compare_carefully[(min(chunks, _CAREFUL_PROGRAMS),)](
            table.careful, table.careful_count, table.addresses, table.other_addresses, table.sizes, table.pairs,
            kinds, other_kinds, values, by_chunk, counter, chunks,
            BLOCK=_CAREFUL_BLOCK, num_warps=_CAREFUL_WARPS, **options,
        )  # fmt: skip
    if pairs:
        fold_pairs[(pairs,)](
            by_chunk, chunks, table.first_chunks, table.addresses, table.other_addresses, table.sides,
            kinds, other_kinds, values, results, pairs,
            BLOCK=128 if chunks > 32 * pairs else 32, num_warps=1, **options,
        )  # fmt: skip
    if device.type != "cuda":
        return lambda: _outcomes(table, results.numpy(), with_norms)
    try:
        copied = table.spare.pop()
    except IndexError:
        copied = host_memory(words, torch.int64, device)
    copied.copy_(results, non_blocking=True)
    done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    @cache  # its memory may be used again after the first call
    def wait() -> Outcomes:
        done.synchronize()
        outcomes = _outcomes(table, copied.numpy(), with_norms)
        table.spare.append(copied)
        return outcomes

    return wait


def _outcomes(table: PairTable, results: Any, with_norms: bool) -> Outcomes:
    pairs = len(table.columns.sizes)
    return Outcomes(table.columns.sizes, results[: FIELDS * pairs].reshape(FIELDS, pairs), with_norms)


def _comparisons(sizes: list[int], rows: Any) -> list[Comparison]:
    """The comparisons of pairs, from their columns in the result; all at once, because a model has many."""
    changed, nonfinite, lost = rows[_COUNTED[:3]]
    squares, (dot, largest) = np.split(rows[_DOUBLES].view(np.float64), [3])
    norms = np.sqrt(squares)
    both = norms[1] * norms[2]
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = np.where(both > 0, dot / both, math.nan)
    columns = [changed, nonfinite, *norms, cosines, np.where(lost > 0, math.nan, largest), lost]
    powers = rows[_POWERS]
    comparisons = [*map(Comparison, sizes, *(column.tolist() for column in columns))]
    for place in np.flatnonzero(powers.any(0)).tolist():  # some are scaled
        found = comparisons[place]
        distance, norm, other_norm = zip(found[3:6], powers[:, place].tolist(), strict=True)
        comparisons[place] = Comparison.of(
            found[:3], (distance, norm, other_norm), found.cosine, found.largest, found.nonfinite_changed
        )
    return comparisons
