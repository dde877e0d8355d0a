"""Arithmetic for moving averages, on many arrays at once. See `lw.Average`."""

from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.core.capabilities.rebuilding import Rebuilding


class Averaging(Capability):
    """Each method gives the arrays as they are afterwards: the same ones, or where they cannot change, new ones."""

    has_defaults = True

    def first_of_other_shape(self, targets: list[Any], values: list[Any]) -> int | None:
        """The number of the first value whose shape is not that of its target; None where all agree."""
        pairs = zip(self.home.specs(targets), self.home.specs(values), strict=True)
        return next((number for number, (target, value) in enumerate(pairs) if target.shape != value.shape), None)

    def clone_many(self, values: list[Any], precise: bool) -> list[Any]:
        """Copies; of floating point with at least 32 bits where they shall be precise."""
        return values  # what cannot change needs no copy

    def copy_many(self, targets: list[Any], values: list[Any]) -> list[Any]:
        """The targets, holding these values."""
        new = self.home.capability(Rebuilding).from_numpy
        return [new(target, self.home.read(value)) for target, value in zip(targets, values, strict=True)]

    def lerp_many(self, targets: list[Any], values: list[Any], weight: float) -> list[Any]:
        """The targets, moved by this share of the way to the values."""
        read, new = self.home.read, self.home.capability(Rebuilding).from_numpy
        triples = [(target, read(target), read(value)) for target, value in zip(targets, values, strict=True)]
        return [new(target, before + weight * (value - before)) for target, before, value in triples]
