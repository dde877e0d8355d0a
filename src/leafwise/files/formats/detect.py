"""Finds the format of a file from its content."""

from leafwise.files.formats import not_checkpoints, safetensors
from leafwise.files.formats.format import FIRST_BYTES, all_formats
from leafwise.files.sources.disk import check_byte_order
from leafwise.files.sources.source import Source, closed_on_error
from leafwise.files.stored_file import StoredFile


def read(source: Source) -> StoredFile:
    """Opens a file in any format, whatever its name."""
    with closed_on_error([source]):
        return _read(source)


def _read(source: Source) -> StoredFile:
    check_byte_order()
    if not source.size:
        raise source.error(0, "the file is empty; was the download cut off?")
    start = bytes(source.read(0, min(FIRST_BYTES, source.size)))
    if safetensors.begins(start, source.size):  # checked first: its leading length may look like any magic number
        return safetensors.read(source)
    if start[:2] == b"PK":
        from leafwise.files.formats import torch_zip

        zip_entries = torch_zip.entries(source)
        for known in all_formats(source.name):
            if known.in_zip is not None and known.in_zip(zip_entries):
                return known.opened(source, zip_entries)
        raise source.error(0, not_checkpoints.by_zip_entries(zip_entries))
    for known in all_formats(source.name):
        if known.recognizes is not None and known.recognizes(start, source.size):
            return known.opened(source)
    cause = not_checkpoints.by_first_bytes(start)
    cause = cause or not_checkpoints.by_content(bytes(source.read(0, min(not_checkpoints.SAMPLE, source.size))))
    if cause:
        raise source.error(0, cause)
    return safetensors.read(source)
