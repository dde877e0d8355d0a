"""The files with weights that are directly in a folder, by their names: single files, indexes and numbered shards.

What other programs write beside the weights (optimizer states, tokenizers, a README) is left out, and what they would
load is preferred. Two checkpoints between which only the user can decide are both returned.
"""

import os
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Literal, NamedTuple

from leafwise.errors import FileError
from leafwise.files.folders import shards
from leafwise.files.formats import detect
from leafwise.files.formats.format import FORMATS, SAFETENSORS, Format, all_formats, suffixes_of
from leafwise.files.record import TENSORS, is_sealed
from leafwise.files.sources.folder import Folder, is_index
from leafwise.files.stored_file import StoredFile

# The names that Hugging Face's libraries look for, in the order in which leafwise prefers them to other files.
_STANDARD = {
    "model": "model",
    "pytorch_model": "model",
    "diffusion_pytorch_model": "diffusion_pytorch_model",
    "adapter_model": "adapter_model",
}
_WITH_VARIANTS = {*_STANDARD, "pytorch_lora_weights"}
_PRECISION = re.compile(r"(fp|bf|float|bfloat|int|uint)\d+\w*|\d+bit", re.IGNORECASE | re.ASCII)

# What training programs store beside the weights: Trainer, accelerate, DeepSpeed.
_SIDE_FILE = re.compile(
    r"(training_args|((optimizer|optim|scheduler|lr_scheduler|scaler|grad_scaler|sampler|rng_state|random_states|"
    r"custom_checkpoint|dl_state_dict)(_\d+)?))\.[a-z]+|.*_(optim|model)_states\.pt",
    re.ASCII | re.DOTALL,
)
_OWN_SHARD = re.compile(r".*-[0-9a-f]{16}-\d{5}-of-\d{5}\.safetensors", re.ASCII | re.DOTALL)  # written by lw.save


class Candidate(NamedTuple):
    """A checkpoint in a folder."""

    path: str  # what to type to open it
    open: Callable[[], StoredFile]
    note: str = ""  # what to know about it, for a list of several


class WeightFile(NamedTuple):
    """A checkpoint in a folder: a file, an index, or a numbered series of shards without an index."""

    kind: Literal["file", "index", "series"]
    names: list[str]  # of the file or the index; of all shards of a series
    stem: str  # "model" in model.fp16.safetensors
    variant: str  # "fp16" in model.fp16.safetensors
    suffix: str
    note: str = ""  # what to know about it, for a list of several

    def candidate(self, folder: Folder) -> Candidate:
        return Candidate(folder.joined(self.names[0]), lambda: self.open(folder), self.note)

    def shards(self, folder: Folder) -> set[str]:
        """The names of the files that an index lists; none for other kinds, and if the index cannot be read."""
        with suppress(FileError):  # opening it raises the error
            return shards.listed_in_index(folder, self.names[0])[0] if self.kind == "index" else set()
        return set()

    def open(self, folder: Folder) -> StoredFile:
        if self.kind == "series":
            return shards.read_series(folder, self.names)
        source = folder.open(self.names[0])
        return shards.read_index(source, folder) if self.kind == "index" else detect.read(source)


def has_weights_suffix(name: str) -> bool:
    """Whether a file has the suffix of a format that leafwise reads."""
    return is_index(name) or name.endswith(suffixes_of(all_formats()))


def expected_suffixes() -> str:
    """The suffixes of files that are opened in folders, for errors."""
    formats = list(all_formats())
    general = [known for known in formats if known.is_general]
    *suffixes, last = suffixes_of(known for known in formats if not known.is_general) + suffixes_of(general)
    return f"{', '.join(suffixes)} or {last}"


def is_side_file(name: str) -> bool:
    """Whether a file has a name that training programs use for what they store beside the weights.

    >>> is_side_file("optimizer.pt"), is_side_file("rng_state_0.pth"), is_side_file("model.pt")
    (True, True, False)
    """
    return _SIDE_FILE.fullmatch(name) is not None


def weight_files(folder: Folder, formats: Collection[Format] = FORMATS) -> list[WeightFile]:
    """The checkpoints in a folder, without its subfolders. There is more than one if only the user can decide."""
    usual, general = (suffixes_of(known for known in formats if known.is_general is kind) for kind in (False, True))
    names = [name for name in folder.names if not is_side_file(name)]
    visible = [name for name in names if not name.startswith(".")]
    hidden = [name for name in names if name.startswith(".") and not name.startswith("._")]  # ._: written by macOS
    present = _present(folder, visible, usual) or _present(folder, visible, general)
    present = present or _present(folder, hidden, usual)
    for stem in dict.fromkeys(_STANDARD.values()):
        standard = [file for file in present if file.stem == stem and file.suffix in (".safetensors", ".bin")]
        if standard:
            # accelerate saves several models as model.safetensors, model_1.safetensors, …
            further = [file for file in present if re.fullmatch(rf"{stem}_\d+", file.stem, re.ASCII)]
            return _preferred(folder, standard) + _by_stem(folder, further)
    return _by_stem(folder, present)


def _by_stem(folder: Folder, files: list[WeightFile]) -> list[WeightFile]:
    by_stem: dict[str, list[WeightFile]] = {}
    for file in files:
        by_stem.setdefault(file.stem, []).append(file)
    preferred = [file for same in by_stem.values() for file in _preferred(folder, same)]
    return preferred if len(preferred) < 2 else _distinct(folder, preferred)


def _distinct(folder: Folder, files: list[WeightFile]) -> list[WeightFile]:
    """The files without shards that an index lists, and without those that are the same file, such as a `last.ckpt`
    that is a link to the last of them."""
    listed = set().union(*(file.shards(folder) for file in files))
    by_place: dict[str, WeightFile] = {}
    real_folder = folder.path if folder.is_remote else os.path.realpath(folder.path)
    for file in files:
        place = os.path.join(real_folder, file.names[0])
        if not folder.is_remote and os.path.islink(place):
            place = os.path.realpath(place)
        if not listed.issuperset(file.names):
            by_place.setdefault(place, file)
    return list(by_place.values())


# -- names ---------------------------------------------------------------------------------------------------


def _present(folder: Folder, names: list[str], suffixes: tuple[str, ...]) -> list[WeightFile]:
    names = [name for name in names if _has_suffix(name, suffixes) and name not in folder.folders]
    indexes = [_of_index(name) for name in names if is_index(name)]
    files, series = [], []
    numbered: dict[tuple[str, str], list[str]] = {}
    for name in names:
        match = shards.SERIES.fullmatch(name)
        if match is not None and not is_index(name):
            numbered.setdefault((match["stem"], match["rest"]), []).append(name)
        elif not is_index(name):
            stem, variant, suffix = _parts(name, suffixes)
            files.append(WeightFile("file", [name], stem, variant, suffix))
    for (prefix, _), members in numbered.items():
        _, _, suffix = _parts(members[0], suffixes)
        stem, variant, _ = _parts(prefix.rstrip("-_.") + suffix, suffixes)
        note = f" and {len(members) - 1} more (shards without an index: move them into a folder of their own)"
        series.append(WeightFile("series", members, stem, variant, suffix, note))
    if indexes or files:  # unless there is nothing else, shards of lw.save without an index are those of a killed save
        series = [file for file in series if not _OWN_SHARD.fullmatch(file.names[0])]
    return [*indexes, *files, *series]


def _has_suffix(name: str, suffixes: tuple[str, ...]) -> bool:
    # An index may have any name: `lw.save(model, "m", shard_size=…)` writes m.index.json.
    return name.endswith(suffixes) or (is_index(name) and SAFETENSORS.suffixes[0] in suffixes)


def _of_index(name: str) -> WeightFile:
    head, _, tail = name.rpartition(".index.")
    stem, variant, suffix = _parts(head)
    return WeightFile("index", [name], stem, tail.removesuffix("json").rstrip(".") or variant, suffix)


def _parts(name: str, suffixes: tuple[str, ...] = suffixes_of(FORMATS)) -> tuple[str, str, str]:
    """Stem, variant and suffix of a name.

    >>> _parts("model.fp16.safetensors"), _parts("pytorch_model.bin"), _parts("v1.5.ckpt")
    (('model', 'fp16', '.safetensors'), ('model', '', '.bin'), ('v1.5', '', '.ckpt'))
    """
    suffix = next((suffix for suffix in suffixes if name.endswith(suffix)), "")
    stem = name.removesuffix(suffix)
    head, _, variant = stem.rpartition(".")
    if head and (head in _WITH_VARIANTS or _PRECISION.fullmatch(variant)):
        stem = head
    else:
        variant = ""
    return _STANDARD.get(stem, stem), variant, suffix


# -- choice --------------------------------------------------------------------------------------------------


def _preferred(folder: Folder, files: list[WeightFile]) -> list[WeightFile]:
    """Of the checkpoints with the same stem, those that other programs would load: the plain one rather than a
    variant, and safetensors rather than `.bin`."""
    plain = [file for file in files if not file.variant] or files
    preferred = []
    for variant in dict.fromkeys(file.variant for file in plain):
        same = [file for file in plain if file.variant == variant]
        if any(file.suffix == ".safetensors" for file in same):
            same = [file for file in same if file.suffix != ".bin"]
        for suffix in dict.fromkeys(file.suffix for file in same):
            preferred += _of_one_name(folder, [file for file in same if file.suffix == suffix])
    return preferred


def _of_one_name(folder: Folder, files: list[WeightFile]) -> list[WeightFile]:
    """Decides between an index, a single file, and shards without an index that have the same name."""
    indexes, singles, series = ([file for file in files if file.kind == kind] for kind in ("index", "file", "series"))
    if indexes and singles:
        return _index_or_file(folder, indexes[0], singles[0])
    if indexes or singles:
        complete = [] if indexes else [file for file in series if not any(shards.missing_of_series(file.names))]
        return indexes + singles + complete
    return series


def _index_or_file(folder: Folder, index: WeightFile, single: WeightFile) -> list[WeightFile]:
    """Decides between an index and a single file of the same name. One of them is left over from an earlier save:
    transformers removes neither, and would load the single file, whereas other programs load the shards."""
    both = [index._replace(note=" (shards)"), single._replace(note=" (one file, which transformers loads)")]
    try:
        listed, is_ours = shards.listed_in_index(folder, index.names[0])
    except FileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise  # it was replaced meanwhile: this makes the caller try again
        return both
    if listed == set(single.names):
        return [index]
    if not listed & set(folder.names):
        return [single]  # all of its shards were removed
    if is_ours and _is_ours(folder, single):
        return [index]  # a save was interrupted before it removed the other; both are complete
    return both


def _is_ours(folder: Folder, single: WeightFile) -> bool:
    source = folder.open(single.names[0])
    try:
        return is_sealed(bytes(source.read(0, min(source.size, 512))), TENSORS, 8)
    finally:
        source.close()
