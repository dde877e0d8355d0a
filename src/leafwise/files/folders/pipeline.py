"""Pipelines of diffusers: `model_index.json` lists the components, and each has a folder with its weights."""

import json
from contextlib import suppress
from typing import Any

from leafwise.core.path import listed, shown_file
from leafwise.errors import FileError
from leafwise.files.folders.weight_files import weight_files
from leafwise.files.limits import json_cost
from leafwise.files.sources.folder import Folder, is_bare
from leafwise.files.sources.source import closed_on_error
from leafwise.files.stored_file import StoredFile

INDEX = "model_index.json"
_INDEX_BYTES = 1 << 20  # bytes of a list of components
# Components that have settings, but no weights, by the end of the name of their class.
_WITHOUT_WEIGHTS = ("Scheduler", "Tokenizer", "TokenizerFast", "TokenizerBackend", "Extractor", "Processor")


class Pipeline(StoredFile):
    """An opened pipeline: its content maps the name of each component to the opened weights."""

    def __init__(self, folder: Folder, components: dict[str, StoredFile]) -> None:
        opened = list(components.values())
        sources = {source.name: source for component in opened for source in component.sources}
        super().__init__(opened[0].source, "diffusers pipeline", components, sources=sources)
        self.path = folder.path
        self.bound = sum(component.bound for component in opened)
        self.unbound = sum(component.unbound for component in opened)
        formats = [name for component in opened for name in component.without_checksums]
        self.without_checksums = tuple(dict.fromkeys(formats))
        self.further_checks = [check for component in opened for check in component.further_checks]
        self.unread_objects = [component.read_objects for component in opened]

    def file_names(self) -> list[str]:
        return [name for component in self.content.values() for name in component.file_names()]


def read(folder: Folder) -> StoredFile:
    """Opens the weights of each component. Components without weights, such as the scheduler, are left out."""
    components: dict[str, StoredFile] = {}
    with closed_on_error(components.values()):
        for name, class_name in _listed(folder).items():
            if name in folder.folders:
                below = folder.folder(name)
                files = weight_files(below)
            else:
                below, files = folder, []
            if len(files) > 1:
                several = listed([shown_file(file.candidate(below).path) for file in files])
                raise FileError(
                    f"cannot open {shown_file(folder.path)}: its component {name!a} contains several checkpoints: "
                    f"{several}; open one of them, or remove those that are not used"
                )
            if files:
                components[name] = files[0].open(below)
                components[name].format = f"{class_name}, {components[name].format}"
            elif not class_name.endswith(_WITHOUT_WEIGHTS):
                raise FileError(
                    f"cannot open {shown_file(folder.path)}: its component {name!a}, of the class {class_name!a}, has "
                    f"no weights in {shown_file(folder.joined(name))}; is the download complete?"
                )
        if not components:
            raise FileError(f"cannot open {shown_file(folder.path)}: {INDEX} lists no component with weights")
        return Pipeline(folder, components)


def _listed(folder: Folder) -> dict[str, str]:
    """The components that the pipeline was saved with, and their classes."""
    text = folder.text(INDEX, _INDEX_BYTES)
    folder.limits.spend_bytes(json_cost(text.encode()))
    index: Any = None
    with suppress(ValueError, RecursionError):
        index = json.loads(text)
    if not isinstance(index, dict):
        raise FileError(f"cannot open {shown_file(folder.joined(INDEX))}: it is not a JSON object")
    classes = {}
    for name, value in index.items():
        # [library, class]; both are null for a component that the pipeline was saved without.
        if not name.startswith("_") and isinstance(value, list) and len(value) == 2 and isinstance(value[1], str):
            if not is_bare(name):
                raise FileError(
                    f"cannot open the component {ascii(name)[:200]} of {shown_file(folder.path)}: only folders "
                    "directly in it are opened"
                )
            classes[name] = value[1][:200]
    return classes
