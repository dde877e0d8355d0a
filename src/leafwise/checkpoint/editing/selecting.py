"""Which arrays and plain values of the sources an edit keeps."""

from collections.abc import Sequence
from typing import Any

from leafwise.checkpoint.editing.contents import Contents, SourceRows, add_plain_values
from leafwise.checkpoint.editing.plain import NOTHING, drop_values, kept_value, matching_values
from leafwise.checkpoint.editing.references import References
from leafwise.checkpoint.editing.result import Steps
from leafwise.checkpoint.saving.collecting import METADATA
from leafwise.core.pairing.row_matching import Renaming


class Selection:
    """The names that are kept, for each source, and the plain values, which come from the first source."""

    def __init__(self, sources: dict[str, SourceRows], steps: Steps) -> None:
        self.sources, self._steps = sources, steps
        self.label, self.first = next(iter(sources.items()))
        self.names = {label: list(source.rows) for label, source in sources.items()}
        self.contents = Contents()  # with plain values, objects, types of nodes and metadata, but no arrays yet
        if self.first.tree.is_whole:
            add_plain_values(self.contents, self.first.tree)
        self.references = References(self.contents.scalars, self.first.rows)

    def keep(self, queries: Sequence[Any]) -> None:
        """Keeps only what one of the queries matches."""
        if not queries:
            return
        values = set(self._values(queries, "keep"))
        kept = {label: self._matched(source, queries) for label, source in self.sources.items()}
        others = []
        if any(isinstance(query, str) for query in queries):  # other queries are for leaves, and keep plain values
            for name in [name for name in (*self.contents.scalars, *self.contents.objects) if name != METADATA]:
                value = kept_value(name, self.contents.scalars.get(name), values)
                if value is NOTHING:
                    others.append(name)
                elif name in self.contents.scalars:
                    self.contents.scalars[name] = value
        gone = {label: set(names) - kept[label] for label, names in self.names.items()}
        dropped = self._remove(gone, follow=False)  # state that is kept by name stays, with or without its parameters
        drop_values(self.contents, others)
        self._steps.add("keep", _listed(queries), self.first_names, -self._nbytes(dropped), 0)

    def drop(self, queries: Sequence[Any]) -> None:
        """Drops what one of the queries matches."""
        # All names are found before anything is dropped, so that positions in lists are those of the source.
        values = [self._values([query], "drop") for query in queries]
        for query, of_query in zip(queries, values, strict=True):
            matched = {label: self._matched(source, [query]) for label, source in self.sources.items()}
            dropped = self._remove(matched)
            names = [*dropped, *of_query]
            self._steps.add("drop", _listed([query]), names, -self._nbytes(dropped), len(of_query))
        drop_values(self.contents, dict.fromkeys(name for of_query in values for name in of_query))

    def matching(self, query: Any) -> list[str]:
        """The names of the first source that are kept and that a query matches."""
        kept = set(self.first_names)
        return [name for name in self.first.matching(query) if name in kept]

    def drop_renamed(self, new_name: Renaming) -> None:
        """Drops what `rename=` leaves out."""
        gone = {label: {name for name in names if new_name(name) is None} for label, names in self.names.items()}
        values = [name for name in self.contents.scalars if new_name(name) is None]
        dropped = self._remove(gone)
        drop_values(self.contents, values)
        if dropped or values:
            self._steps.add("drop", "renamed to None", [*dropped, *values], -self._nbytes(dropped), len(values))

    def _values(self, queries: Sequence[Any], option: str) -> list[str]:
        """The plain values that the queries match. Adds a problem for a query that matches nothing at all."""
        matched: list[str] = []
        for query in queries:
            values = matching_values(self.contents, query)
            if not values and not any(source.matching(query) for source in self.sources.values()):
                self._steps.matched_nothing(option, query)
            matched += values
        return list(dict.fromkeys(matched))

    def _matched(self, source: SourceRows, queries: Sequence[Any]) -> set[str]:
        return {name for query in queries for name in source.matching(query)}

    def _remove(self, gone: dict[str, set[str]], follow: bool = True) -> list[str]:
        """Removes names. If some parameters of an optimizer are removed, but not all, their state follows them. Returns
        the names that the first source had."""
        before = self.first_names
        parameters = self.references.parameters.intersection(before)
        follow = follow and not parameters <= gone[self.label]
        lost = 0
        for key, names in self.names.items():
            states = set(self.references.states_of(gone[key].intersection(names), names)) if follow else set()
            lost += len(states - gone[key]) if key == self.label else 0
            self.names[key] = [name for name in names if name not in gone[key] and name not in states]
        if lost:
            self._steps.notes.append(f"the optimizer state of dropped parameters is dropped, too ({lost:,} leaves)")
        if follow:
            self.references.without(self.contents.scalars, gone[self.label])
        left = set(self.first_names)
        return [name for name in before if name not in left]

    @property
    def first_names(self) -> list[str]:
        """The names of the first source that are kept."""
        return self.names[self.label]

    def _nbytes(self, names: Sequence[str]) -> int:
        """The bytes of leaves of which no name is left."""
        ties, rows = self.first.columns.ties, self.first.rows
        left = {ties.get(rows[name], rows[name]) for name in self.first_names}
        gone = {ties.get(rows[name], rows[name]): name for name in names}
        return sum(self.first.spec(name).nbytes for leaf, name in gone.items() if leaf not in left)


def _listed(queries: Sequence[Any]) -> str:
    return ", ".join(query if isinstance(query, str) else repr(query) for query in queries)
