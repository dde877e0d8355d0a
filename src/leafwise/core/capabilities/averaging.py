"""Arithmetic for moving averages, on many arrays at once. See `lw.Average`."""

from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.core.capabilities.rebuilding import Rebuilding


class Averaging(Capability):
    """Each method returns the updated arrays: the same ones, or new ones where arrays cannot change."""

    has_defaults = True

    def first_of_other_shape(self, targets: list[Any], values: list[Any]) -> int | None:
        """The number of the first value whose shape differs from that of its target; None where all agree."""
        pairs = zip(self.home.specs(targets), self.home.specs(values), strict=True)
        return next((number for number, (target, value) in enumerate(pairs) if target.shape != value.shape), None)

    def clone_many(self, values: list[Any], precise: bool) -> list[Any]:
        """Copies of arrays. With `precise`, floating point of less than 32 bits is copied as float32."""
        return values  # arrays that cannot change need no copy

    def copy_many(self, targets: list[Any], values: list[Any]) -> list[Any]:
        """The targets, holding these values."""
        new = self.home.capability(Rebuilding).from_numpy
        return [new(target, self.home.read(value)) for target, value in zip(targets, values, strict=True)]

    def lerp_many(self, targets: list[Any], values: list[Any], weight: float) -> list[Any]:
        """The targets, moved towards the values by the fraction `weight`."""
        read, new = self.home.read, self.home.capability(Rebuilding).from_numpy
        triples = [(target, read(target), read(value)) for target, value in zip(targets, values, strict=True)]
        return [new(target, before + weight * (value - before)) for target, before, value in triples]
