"""The names that leafwise gives to shards, and what the text of an index says about them."""

import json
import os
import re

from leafwise.files import record
from leafwise.files.checksums import checksum

_SHARD = "-0123456789abcdef-00001-of-00001.safetensors"  # an example of what follows the checkpoint's name
_OWN_SUFFIX = r"[0-9a-f]{8}-\d{5}-of-\d{5}\.safetensors"  # follows `own_prefix` in the names of shards


def own_prefix(name: str) -> str:
    """The prefix of the names of a checkpoint's shards, which no other checkpoint has: it differs for `m` and
    `m.safetensors`. Characters that are part of a path on some system, or not printable, are replaced; a long name is
    cut."""
    stem, digits = _stem_and_digits(name)
    stem = re.sub(r"[\\:\x00-\x1f\x7f\ud800-\udfff]", "_", stem)
    return f"{stem.encode()[: 255 - len(_SHARD)].decode(errors='ignore')}-{digits}"


def _stem_and_digits(name: str) -> tuple[str, str]:
    return name.removesuffix(".safetensors"), checksum(os.fsencode(name))[:8]


def own_shards(name: str, files: list[str]) -> list[str]:
    """The files that can only be shards of the checkpoint with this name, by their names."""
    former = "-".join(_stem_and_digits(name))  # the prefix that shards had before characters were replaced
    is_own = re.compile(f"({re.escape(own_prefix(name))}|{re.escape(former)}){_OWN_SUFFIX}").fullmatch
    return [file for file in files if is_own(file)]


def listed_shards(text: bytes, files: list[str]) -> set[str]:
    """The shards that an index lists, from its text. `files` are the names of the files in its folder."""
    try:
        return set(json.loads(text)["weight_map"].values())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        # A damaged index, or another program's. Everything that looks like the name of one of our shards counts; only
        # the end is compared, because the rest may be escaped in several ways.
        ends = {end.decode() for end in re.findall(rb"[0-9a-f]{8}" + _OWN_SUFFIX.encode(), text)}
        return {name for name in files if name[-len(_SHARD) + 1 :] in ends}


def is_index_text(text: bytes) -> bool:
    """Whether a file is an index of shards, ours or another program's, or the remains of a damaged one."""
    return not text.strip() or b'"weight_map"' in text or text.startswith(record.INDEX.encode())
