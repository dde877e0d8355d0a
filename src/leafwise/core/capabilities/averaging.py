"""Arithmetic for moving averages, on many arrays at once. See `lw.Average`."""

from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.dtypes import is_float


class Averaging(Capability):
    """Each method returns the updated arrays: the same ones, or new ones where arrays cannot change."""

    has_defaults = True

    def first_of_other_shape(self, targets: list[Any], values: list[Any]) -> int | None:
        """The number of the first value whose shape, or whose sharding, differs from that of its target; None if all
        are equal."""
        ours, theirs = (
            [(spec.shape, spec.sharding) for spec in self.home.specs(arrays)] for arrays in (targets, values)
        )
        return next((number for number, shape in enumerate(ours) if shape != theirs[number]), None)

    def clone_many(self, values: list[Any], precise: bool) -> list[Any]:
        """Copies of arrays. With `precise`, floating point of less than 32 bits is copied as float32."""
        new = self.home.capability(Rebuilding).from_numpy
        narrow = [precise and is_float(spec.dtype) and spec.nbytes < 4 * spec.size for spec in self.home.specs(values)]
        return [
            new(value, self.array_of(value).astype("float32"))
            if is_narrow
            else new(value, self.array_of(value).copy())
            if self.home.in_place
            else value  # cannot change, so it needs no copy
            for value, is_narrow in zip(values, narrow, strict=True)
        ]

    def copy_many(self, targets: list[Any], values: list[Any]) -> list[Any]:
        """The targets, with these values."""
        pairs = zip(targets, values, strict=True)
        return [self.home.capability(Rebuilding).updated(target, self.array_of(value)) for target, value in pairs]

    def lerp_many(self, targets: list[Any], values: list[Any], weight: float) -> list[Any]:
        """The targets, moved towards the values by the fraction `weight`."""
        array_of, updated = self.array_of, self.home.capability(Rebuilding).updated
        triples = [(target, array_of(target), array_of(value)) for target, value in zip(targets, values, strict=True)]
        return [updated(target, before + weight * (value - before)) for target, before, value in triples]
