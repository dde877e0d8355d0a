"""An edit that was planned, and can be carried out."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from leafwise.checkpoint.editing.changes import MustEqual
from leafwise.checkpoint.editing.contents import Contents, EditedArray
from leafwise.checkpoint.editing.result import Edit, EditedLeaf
from leafwise.checkpoint.saving.write_arguments import written
from leafwise.core.path import escape, shown_file
from leafwise.core.roles.recipes import Recipe, Taken, Turned
from leafwise.core.work.executor_tasks import Workers
from leafwise.core.work.progress import bar
from leafwise.errors import EditError, WriteError
from leafwise.files.arrays.computed import Combined
from leafwise.files.arrays.stored import Stored, same_values
from leafwise.files.casts import SATURATE, CastArray
from leafwise.files.formats.format import Format
from leafwise.files.sources.remote import is_url
from leafwise.files.writing.item_writer import Checkpoint, Item


@dataclass
class EditJob:
    """What an edit writes, and how."""

    result: Edit
    contents: Contents
    equal: list[MustEqual]
    metadata: dict[str, str]
    format_name: str
    array_format: Format | None  # if what is written contains nothing but arrays
    shard_size: int | None
    copies: bool
    saturate: bool
    advice: str = "saturate=True uses the nearest value that fits"

    def write(self, progress: bool = False, workers: Workers | None = None) -> None:
        """Writes the file. The one that is there is replaced only when everything is written."""
        for pair in self.equal:
            self._check_equal(pair)
        checkpoint = self._checkpoint()
        path = self.result.path
        with bar(sum(item.nbytes for item in checkpoint.items), "writing", progress) as count, self._explained():
            if self.array_format is not None:
                self.array_format.written(checkpoint.items, path, count)
                if not is_url(path) and not os.path.exists(path):
                    raise WriteError(f"{self.array_format.name} did not write {shown_file(path)}")
            else:
                self.result.path = written(checkpoint, self.format_name, path, self.shard_size, count, workers)
        self.result.written = True

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Says what to do about a value that does not fit into the dtype to write."""
        try:
            yield
        except WriteError as error:
            reason = str(error).removesuffix(f"; {SATURATE}")
            raise EditError(f"{reason}; {self.advice}; nothing was written", [reason]) from error

    def _check_equal(self, pair: MustEqual) -> None:
        """Raises unless an array that becomes another name of a stored array has its values."""
        recipe = pair.target.recipe if pair.op.order is None else Turned(pair.target.recipe, pair.op.order)
        ours, theirs = self.contents.value_of(pair.array.recipe), self.contents.value_of(recipe)
        if not all(same_values(a, b) for a, b in zip(ours.parts(), theirs.parts(), strict=True)):
            raise EditError(
                f"cannot tie {escape(pair.name)} to {escape(pair.stored)}{pair.op.describe()}: their values differ; to "
                f"use those of {escape(pair.stored)}, add drop={pair.name!r}; nothing was written"
            )

    def _checkpoint(self) -> Checkpoint:
        contents = self.contents
        items = [self._item(name, array) for name, array in contents.arrays.items()]
        if self.copies:
            for name, tied in contents.ties.items():
                array = contents.arrays[tied.of]
                items.append(self._item(name, EditedArray(_seen(contents, name), array.dtype, array.kind, tied.role)))
        orders = {name: array.order for name, array in contents.arrays.items() if array.order is not None}
        ties = [(name, tied.of, tied.op) for name, tied in contents.ties.items()]
        roles = [tied.role for tied in contents.ties.values()]
        return Checkpoint(items, ties, roles, contents.scalars, contents.nodes, orders, self.metadata)

    def _item(self, name: str, array: EditedArray) -> Item:
        value: Stored = self.contents.value_of(array.recipe)
        if value.spec.dtype != array.dtype:
            if isinstance(value, Combined):  # a sum is rounded once, to the dtype that is written
                value = Combined(value.inputs, value.weights, array.dtype, saturate=self.saturate)
            else:
                value = CastArray(value, array.dtype, self.saturate)
        return Item(name, array.shape, array.dtype, array.kind, array.role, partial(value.chunks), value)


def _seen(contents: Contents, name: str) -> Recipe:
    """The recipe of a tied name."""
    tied = contents.ties[name]
    recipe = contents.arrays[tied.of].recipe
    if tied.op.slices is not None:
        value = contents.values[name]
        return Taken(name, value.spec.shape or ())
    return recipe if tied.op.order is None else Turned(recipe, tied.op.order)


def edited_leaves(contents: Contents) -> list[EditedLeaf]:
    """The arrays that are written, and their further names."""
    leaves = [
        EditedLeaf(name, tuple(array.recipe.names()), tuple(array.changes), array.shape, array.dtype, array.nbytes)
        for name, array in contents.arrays.items()
    ]
    for name, tied in contents.ties.items():
        array = contents.arrays[tied.of]
        shape = _seen(contents, name).shape
        leaves.append(EditedLeaf(name, tuple(array.recipe.names()), (), shape, array.dtype, 0, tied.of))
    return leaves
