"""Sums of several checkpoints: which leaves belong together, and every mismatch between them."""

from collections.abc import Iterable, Mapping, Sequence

from leafwise.checkpoint.editing.contents import SourceRows
from leafwise.checkpoint.editing.result import Steps
from leafwise.core.dtypes import number_kind
from leafwise.core.leaf import shape_text
from leafwise.core.path import escape
from leafwise.files.arrays.computed import Combined
from leafwise.files.arrays.stored import ITEM_BYTES, Stored, same_values


class Merge:
    """The sources of a sum by name, their factors, and the names that are taken from the first source only."""

    def __init__(self, sources: Mapping[str, SourceRows], factors: Sequence[float], copied: Iterable[str]) -> None:
        self.sources, self.factors, self.copied = sources, factors, frozenset(copied)
        self.first_label, self.first = next(iter(sources.items()))

    def check(self, names: Mapping[str, Sequence[str]], steps: Steps) -> None:
        """Adds a problem for each name that is missing in a source, or whose shapes or kinds of numbers differ."""
        everything = dict.fromkeys(name for of_source in names.values() for name in of_source)
        sets = {label: set(of_source) for label, of_source in names.items()}
        for name in everything:
            if lacking := [label for label, of_source in sets.items() if name not in of_source]:
                there = next(label for label, of_source in sets.items() if name in of_source)
                where = f"in {there} but not in {', '.join(lacking)}"
                steps.wrong_name(name, f"is {where}", f"are {where}")
                continue
            specs = {label: source.spec(name) for label, source in self.sources.items()}
            shapes = {label: spec.shape for label, spec in specs.items()}
            if len(set(shapes.values())) > 1:
                each = ", ".join(f"{shape_text(shape)} in {label}" for label, shape in shapes.items())
                steps.wrong_name(name, f"has different shapes: {each}", f"have different shapes: {each}")
            elif len({_kind(spec.dtype) for spec in specs.values()}) > 1:
                each = ", ".join(f"{spec.dtype} in {label}" for label, spec in specs.items())
                different = f"different kinds of numbers: {each}"
                steps.wrong_name(name, f"has {different}", f"have {different}")

    def values(self, names: Iterable[str], saturate: bool, steps: Steps) -> dict[str, Stored]:
        """The sum for each name. An array of integers is taken from the first source; adds a problem if the others
        have different values."""
        combined: dict[str, Stored] = {}
        mixed: list[str] = []
        kept: list[str] = []
        for name in names:
            if name in self.copied:
                continue
            inputs = [source.value(name) for source in self.sources.values()]
            dtype = inputs[0].spec.dtype
            if number_kind(dtype) in ("float", "complex"):
                combined[name] = Combined(inputs, self.factors, dtype, saturate=saturate)
                if len({value.spec.dtype for value in inputs}) > 1:
                    mixed.append(name)
            elif self._are_equal(inputs):
                kept.append(name)
            else:
                steps.problems.append(
                    f"{escape(name)} contains {dtype} numbers that differ between the sources, and sums are for "
                    f"floating-point numbers; copy={name!r} takes them from {self.first_label}"
                )
        if kept:
            steps.add("keep", "integers, equal in all sources", kept)
        if mixed:
            steps.notes.append(
                f"dtypes differ between sources for {len(mixed):,} leaves; the result has those of {self.first_label}"
            )
        return combined

    def _are_equal(self, inputs: list[Stored]) -> bool:
        first, *others = inputs
        return all(
            other.spec.dtype == first.spec.dtype
            and all(same_values(a, b) for a, b in zip(first.parts(), other.parts(), strict=True))
            for other in others
        )

    def not_tied_everywhere(self, names: Iterable[str]) -> list[str]:
        """Names that are tied in the first source but not, or not in the same way, in all others."""
        first = self.first
        by_row = first.names_by_row
        apart = []
        for name in names:
            leaf = first.columns.ties.get(first.rows[name], first.rows[name])
            if leaf == first.rows[name] or leaf not in by_row:
                continue
            others = list(self.sources.values())[1:]
            if not all(source.is_tied(name, by_row[leaf], first.op(name)) for source in others):
                apart.append(name)
        return apart


def _kind(dtype: str) -> str:
    return number_kind(dtype) if dtype in ITEM_BYTES else "float"  # quantized values are decoded
