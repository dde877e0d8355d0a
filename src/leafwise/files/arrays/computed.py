"""Arrays that are made from other stored arrays when they are read."""

from collections.abc import Iterable

from leafwise.files.arrays.arrays import Storage, Stored


class Computed(Stored):
    """The base of arrays that are made from others: their bytes and their checksums are those of the others."""

    __slots__ = ()

    @property
    def made_from(self) -> Iterable[Stored]:
        raise NotImplementedError

    def storages(self) -> list[Storage]:
        return [storage for value in self.made_from for storage in value.storages()]

    def check(self) -> None:
        for value in self.made_from:
            if value.checks_itself:
                value.check()

    def is_checked(self) -> bool:
        return all(value.is_checked() for value in self.made_from)

    @property
    def checks_itself(self) -> bool:  # type: ignore[override]
        return any(value.checks_itself for value in self.made_from)
