"""What files offer beyond being walked and read: statistics, comparison, their bytes, and views."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from leafwise.core.capabilities.comparing import Comparing, words_of
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.vetting import Danger, Vetting
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.memory.ops import Op
from leafwise.core.memory.runs import Run
from leafwise.core.opaque import Opaque
from leafwise.core.work.progress import Count
from leafwise.files.arrays.stored import Inflated, InMemory, Placed, Stored, Unreadable, as_bytes
from leafwise.files.reading.checked_reads import unchanged
from leafwise.files.sources.source import LocalSource
from leafwise.files.stored_file import StoredFile

if TYPE_CHECKING:
    from leafwise.core.results.moments import Moments

_PACKED = ("torch.ao.nn.quantized.", "torch.ao.nn.intrinsic.quantized.", "torch.nn.quantized.")
_PICKLES = ("pickle", "joblib", "PyTorch", "DCP")  # begin the names of formats that are pickles
_HELD = 256 << 20  # bytes; a compressed array of at most this size is read whole and kept in memory


class FileMeasuring(Measuring):
    def cannot_measure(self, value: Stored) -> str:
        from leafwise.files.reading import measuring

        return self.home.cannot_read(value) or measuring.cannot_measure(value)

    def measure(self, values: list[Any], histogram: bool, count: Count) -> "Callable[[], list[Moments]]":
        from leafwise.files.reading import measuring

        moments = measuring.measure(values, histogram, count)
        return lambda: moments

    def reads_parts(self, value: Stored) -> bool:
        # Each part of a compressed array is unpacked from the beginning, so a small one is better kept in memory.
        return value.reads_parts and not (isinstance(value, Inflated) and value.spec.nbytes <= _HELD)


class FileComparing(Comparing):
    def contiguous_run(self, value: Stored) -> Run | None:
        run = value.plain_run()
        if run is None or not isinstance(run[0].source, LocalSource):
            return None
        storage, start, _ = run
        descriptor = storage.source.descriptor()  # type: ignore[attr-defined]
        return Run(storage.start + start, value.spec.size, value.spec.dtype, storage.source, descriptor)

    def same_bits(self, first: Stored, second: Stored) -> bool:
        if first.spec[:2] != second.spec[:2]:
            return False
        return all(as_bytes(a) == as_bytes(b) for a, b in zip(first.parts(), second.parts(), strict=True))

    def fingerprint(self, value: Stored) -> tuple[int, bool] | None:
        if isinstance(value, Unreadable) or not value.spec.size:
            return None
        total, first, constant = 0, None, True
        for part in value.parts():
            words = words_of(part)
            first = words[0] if first is None else first
            constant = constant and bool((words == first).all())
            total += int(words.sum(dtype="uint64"))
        return total % 2**64, constant


def _file_of(value: Stored) -> str:
    if isinstance(value, Placed):  # a header may list a hundred thousand of them, whose storages nobody needs yet
        return value.source.name
    names = list(dict.fromkeys(storage.source.name for storage in value.storages()))
    return names[0] + f" and {len(names) - 1:,} more" * (len(names) > 1) if names else ""


class FileSaving(Saving):
    def pieces(self, value: Stored) -> Iterator[Any]:
        return value.chunks()

    def snapshot(self, values: list[Stored]) -> list[Stored]:
        return values  # files are not expected to change; `check_unchanged` notices if one did

    def files_of(self, values: list[Stored]) -> list[str]:
        return [_file_of(value) for value in values]

    def check_unchanged(self, values: list[Stored]) -> None:
        unchanged(storage.source for value in values for storage in value.storages())


class FileVetting(Vetting):
    def called_elsewhere(self, obj: Any) -> dict[str, Danger]:
        if not isinstance(obj, StoredFile):
            return {}
        from leafwise.files.formats.inner_files import probe
        from leafwise.files.pickles.pickle_calls import danger
        from leafwise.files.pickles.torch_objects import EXPECTED

        obj.read_objects()
        if obj.is_local and not obj.format.startswith(_PICKLES):
            probe(obj.source)
        dangers: dict[str, Danger] = {}
        for named, use in obj.pickle_names.items():
            level = danger(*named, EXPECTED, use)
            if level is not None:
                dangers[".".join(named) + (f", {use.doubt}" if use.doubt else "")] = level
        return dangers

    def unlisted(self, objects: list[Any]) -> dict[int, str]:
        reason = "its weights are packed by PyTorch's quantization, and are not part of its parameters; dequantize the "
        return {
            number: reason + "model before you save it"
            for number, obj in enumerate(objects)
            if isinstance(obj, Opaque) and obj.class_name.startswith(_PACKED)
        }


class FileViewing(Viewing):
    def seen_through(self, value: Stored, op: Op) -> Stored:
        seen = value.read(op.slices or ())
        seen = seen if op.order is None else seen.transpose(op.order)
        return InMemory(value.spec._replace(shape=seen.shape, size=seen.size, nbytes=seen.nbytes), lambda: seen)
