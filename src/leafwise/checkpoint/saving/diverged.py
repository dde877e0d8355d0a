"""Copies of arrays that several ranks have, and that should be equal: of a parameter that is replicated over a mesh,
or of a buffer. If they differ, a checkpoint would contain those of one rank, and a resumed run would not continue."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from leafwise.checkpoint.saving.saved_content import SavedArray, SavedContent
from leafwise.core.capabilities.saving import Part, Saving
from leafwise.core.memory.sharding import LocalPart
from leafwise.core.path import escape, listed, plural
from leafwise.errors import QueryError, RankError, warn
from leafwise.files.checksums import running_checksum

ALLOW = 'allow={"diverged"}'
_DIFFERENCES = 8  # that a message lists


class Difference(NamedTuple):
    """An array of which two ranks have copies that differ."""

    array: SavedArray
    rank: int
    other: int

    def __str__(self) -> str:
        return escape(f"{self.array.name} (rank {self.rank} and rank {self.other})")


def checked_allow(allow: Iterable[str]) -> bool:
    """Whether copies may differ, from the argument of `lw.save`."""
    allowed = {allow} if isinstance(allow, str) else set(allow)
    if not allowed <= {"diverged"}:
        raise QueryError(f'allow= takes {{"diverged"}}, not {sorted(map(str, allowed))}')
    return bool(allowed)


def digests(content: SavedContent, array: SavedArray, parts: Sequence[LocalPart], ranks: int) -> list[str]:
    """A digest for each part of an array in this process, of which other ranks may have copies; otherwise empty."""
    sharding = array.facts.spec.sharding
    is_copied = sharding is None or sharding.ranks < ranks
    if sharding is not None and not is_copied:
        is_copied = any(how == "replicate" and n > 1 for how, n in zip(sharding.placements, sharding.mesh, strict=True))
    return [_digest(content, part) if is_copied and array.facts.spec.size else "" for part in parts]


def _digest(content: SavedContent, part: LocalPart) -> str:
    saving, checksum = content.columns.home(part.value).capability(Saving), running_checksum()
    (extraction,) = saving.extractions([part.value])
    if extraction is None:
        for piece in saving.pieces(part.value):
            checksum.update(piece)
        return str(checksum.hexdigest())
    nbytes, step = content.columns.home(part.value).spec(part.value).nbytes, extraction.largest // 64 * 64
    try:
        for start in range(0, nbytes, step):
            with extraction.copied([Part(part.value, start, min(start + step, nbytes))]) as data:
                checksum.update(data)
    finally:
        extraction.finish()
    return str(checksum.hexdigest())


def report(differences: Sequence[Difference], is_allowed: bool) -> None:
    """Warns of buffers whose copies differ. Raises if those of parameters or of optimizer state do, unless that is
    allowed; then, it warns, too."""
    errors = [] if is_allowed else [differing for differing in differences if differing.array.facts.kind != "buffer"]
    if errors:
        raise RankError(
            f"cannot save {plural(len(errors), 'array', 'arrays')} whose copies on several ranks have diverged: "
            f"{_listed(errors)}; find out why the ranks computed different values, or pass {ALLOW} to save those of "
            "the first rank that has one",
            errors[0].rank,
        )
    if differences:
        warn(
            escape(
                f"the copies of {plural(len(differences), 'array', 'arrays')} differ between ranks: "
                f"{_listed(differences)}; those of the first rank that has one are saved"
            )
        )


def _listed(differences: Sequence[Difference]) -> str:
    return listed(list(map(str, differences)), _DIFFERENCES)
