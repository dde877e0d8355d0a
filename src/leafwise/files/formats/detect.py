"""Finds the format of a file from its content, and says what a file is that people mistake for a checkpoint."""

import re
from collections.abc import Collection
from contextlib import suppress

from leafwise.errors import FileError
from leafwise.files.formats import safetensors
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
    header = start
    with suppress(FileError):  # of a file that is being sent to a store, perhaps only the beginning is here
        header = bytes(source.read(0, min(_TAR_HEADER, source.size)))
    if _is_tar(header):
        raise source.error(0, _TAR)
    if safetensors.begins(start, source.size):  # checked first: its leading length may look like any magic number
        return safetensors.read(source)
    if start[:2] == b"PK":
        from leafwise.files.formats import torch_zip

        zip_entries = torch_zip.entries(source)
        claiming = [known for known in all_formats(source.name) if known.claims("in_zip", zip_entries)]
        if {"PyTorch zip", "torch.export"} <= {known.name for known in claiming}:
            raise source.error(0, "PyTorch could load this zip as a checkpoint and as an archive of torch.export")
        if claiming:
            return claiming[0].opened(source, zip_entries)
        raise source.error(0, _by_zip_entries(zip_entries))
    for known in all_formats(source.name):
        if known.claims("recognizes", start, source.size):
            return known.opened(source)
    cause = _by_first_bytes(start) or _by_content(bytes(source.read(0, min(_SAMPLE, source.size))))
    if cause:
        raise source.error(0, cause)
    return safetensors.read(source)


def _is_tar(header: bytes) -> bool:
    """Whether a file that begins like this is a tar archive, perhaps besides something else: `torch.load` tries that
    first. Its header has its own checksum, which `tarfile` reads in the same way."""
    if len(header) < _TAR_HEADER:
        return False
    field, rest = header[148:156], header[:148] + header[156:]
    try:
        if field[0] & 0x80:
            stated = int.from_bytes(field[1:], "big") - (1 << 56 if field[0] == 0xFF else 0)
        else:
            stated = int(field.partition(b"\0")[0].decode("ascii").strip() or "0", 8)
    except ValueError:
        return False
    spaces = 8 * ord(" ")
    return stated in (spaces + sum(rest), spaces + sum(rest) - 256 * sum(byte > 127 for byte in rest))


_TAR_HEADER = 512  # bytes
_TAR = (
    "this is a tar archive; unpack it first. If PyTorch before 0.1.10 wrote it, load it with PyTorch, and save it again"
)
_SAMPLE = 4_096  # bytes that are enough to recognize text
_DOWNLOADED = "perhaps an error page saved instead of the download; download the file again"
_PICTURE, _SOUND, _VIDEO = "a picture", "a sound file", "a video"

# First bytes, in lower case where they are text → what the file is, and what to do.
_INSTEAD = (
    (b"version https://git-lfs", "this is a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`"),
    ((b"<!doctype", b"<html"), f"this is an HTML page, {_DOWNLOADED}"),
    (b"<?xml", "this is an XML page, perhaps an error message saved instead of the download; download the file again"),
    (b"\x89hdf", "this is an HDF5 file, as written by Keras, which leafwise does not read"),
    (b"\x1f\x8b", "this file is compressed with gzip; decompress it first"),
    (b"\x28\xb5\x2f\xfd", "this file is compressed with zstd; decompress it first"),
    (b"bzh", "this file is compressed with bzip2; decompress it first"),
    ((b"x\x9c", b"x\xda", b"x\x5e"), "this file is compressed with zlib, as by joblib; decompress it first"),
    (b"\xfd7zxz", "this file is compressed with xz; decompress it first"),
    (b"\x04\x22m\x18", "this file is compressed with lz4; decompress it first"),
    (b"7z\xbc\xaf\x27\x1c", "this is a 7z archive; unpack it first"),
    (b"rar!\x1a\x07", "this is a RAR archive; unpack it first"),
    (b"{", "this is JSON; to open an index of shards, give its folder, or a file whose name ends in .index.json"),
)

# First bytes of other files → what they are.
_KINDS = (
    ((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"II*\x00", b"MM\x00*"), _PICTURE),
    (b"%PDF-", "a PDF document"),
    (b"\x7fELF", "a program or library for Linux"),
    (b"MZ", "a program or library for Windows"),
    (b"\xcf\xfa\xed\xfe", "a program or library for macOS"),
    (b"\xca\xfe\xba\xbe", "a program or library for macOS, or a Java class"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"PAR1", "a Parquet table"),
    (b"ARROW1\x00\x00", "an Arrow table"),
    ((b"OggS", b"fLaC", b"ID3"), _SOUND),
)
_RIFF = {b"WEBP": _PICTURE, b"WAVE": _SOUND, b"AVI ": _VIDEO}


def _by_first_bytes(start: bytes) -> str:
    """What is wrong with a file that begins like this; empty if nothing is known to be."""
    for magic, cause in _INSTEAD:
        if start.lower().startswith(magic):
            return cause
    kind = next((kind for magic, kind in _KINDS if start.startswith(magic)), "")
    if start.startswith(b"RIFF"):
        kind = _RIFF.get(start[8:12], "")
    if start[4:8] == b"ftyp":
        kind = _VIDEO
    return f"not a checkpoint: it is {kind}" if kind else ""


def _by_zip_entries(names: Collection[str]) -> str:
    """What is wrong with a zip that has these entries, of which none is a pickle, and not all are arrays."""
    if any(name.endswith("model.weights.h5") for name in names):
        return "not a checkpoint that leafwise reads: it is a Keras file"
    shown = ", ".join(ascii(name)[:100] for name in list(names)[:3]) + (", …" if len(names) > 3 else "")
    return (
        f"not a checkpoint: it is a zip file that contains {shown}; if the checkpoint is one of its entries, "
        "unpack it first"
    )


def _by_content(sample: bytes) -> str:
    """What is wrong with a file in no known format, from its first `_SAMPLE` bytes; empty if it is not recognized."""
    if sample[257:262] == b"ustar":
        return _TAR
    text = _text(sample)
    if text is None:
        return ""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    begins = f", and begins with {line[:60]!a}" if line else ""
    return f"not a checkpoint: it looks like text{begins}"


def _text(sample: bytes) -> str | None:
    """The text that a file begins with, in UTF-8 or UTF-16; None if it is not text.

    >>> _text("ä\\n".encode()), _text("ä\\n".encode("utf-16")), _text(bytes([1, 2, 3]))
    ('ä\\n', 'ä\\n', None)
    """
    encoding = "utf-8-sig"
    if sample[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    elif _mostly_zero(sample[1:64:2]):
        encoding = "utf-16-le"
    elif _mostly_zero(sample[0:64:2]):
        encoding = "utf-16-be"
    for cut in range(4):  # the sample may end within a character
        try:
            text = sample[: len(sample) - cut].decode(encoding)
        except UnicodeDecodeError:
            continue
        return None if not text or _CONTROL.search(text) else text
    return None


def _mostly_zero(data: bytes) -> bool:
    return len(data) > 1 and data.count(0) * 4 > len(data) * 3


_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")  # tabs, line breaks and escape sequences are text
