"""A file with so many arrays that C code lists them."""

from functools import cached_property
from typing import Any

from leafwise.core.dotted import Listing
from leafwise.files.arrays.arrays import Placed
from leafwise.files.sources.source import Source
from leafwise.files.stored_file import StoredFile
from leafwise.kernels.listing import DottedNames


class ListedFile(StoredFile):
    """An opened file whose names were split while the header was read. Its arrays are in the order of the names."""

    is_flat = True

    def __init__(
        self, source: Source, format_name: str, names: DottedNames, arrays: list[Placed], metadata: dict[str, Any]
    ) -> None:
        super().__init__(source, format_name, None, metadata)
        del self.content  # it is made below, when somebody asks for it
        self._names, self._arrays = names, arrays

    @cached_property
    def content(self) -> dict[str, Placed]:
        return dict(zip(self._names.text[:-1].split("\n"), self._arrays, strict=True))

    def listing(self) -> Listing:
        return Listing(self._names.columns(), self._arrays)
