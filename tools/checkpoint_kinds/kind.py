"""What a kind of checkpoint is: the tool that writes it, and the truth about what it contains."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from tools.checkpoint_kinds.truth import Truth


class Written(NamedTuple):
    """A checkpoint that was written: the path to open, and what it contains.

    `optimizer` is the path of the optimizer's state. `opaque` are the classes whose objects leafwise must list as not
    loaded; there may be others.
    """

    path: Path
    truth: Truth
    optimizer: str | None = None
    opaque: tuple[str, ...] = ()


Write = Callable[[Path], Written]


class Kind(NamedTuple):
    """`tool` is the distribution that writes the checkpoint here. If there is none, a script writes it as the
    documentation or the code of `layout` describes. `extra` are modules beyond those that `make test` installs."""

    name: str
    tool: str
    layout: str
    extra: tuple[str, ...]
    write: Write

    @property
    def made_by(self) -> str:
        return (
            f"{self.tool} {metadata.version(self.tool).partition('+')[0]}" if self.tool else f"{self.layout} (layout)"
        )


KINDS: dict[str, Kind] = {}


def kind(name: str, *, tool: str = "", layout: str = "", extra: tuple[str, ...] = ()) -> Callable[[Write], Write]:
    """Registers the function below it as the one that writes a kind of checkpoint."""

    def register(write: Write) -> Write:
        assert name not in KINDS, name
        KINDS[name] = Kind(name, tool, layout, extra, write)
        return write

    return register


def saved(content: Any, path: Path, **options: Any) -> Truth:
    """Saves an object with torch.save, and returns what it contains."""
    truth = Truth.of(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path, **options)
    return truth


@contextmanager
def recorded() -> Iterator[list[Truth]]:
    """Records what is passed to torch.save, at the time of each call, for tools that save by themselves."""
    truths: list[Truth] = []
    original = torch.save

    def save(obj: Any, *args: Any, **options: Any) -> None:
        truths.append(Truth.of(obj))
        original(obj, *args, **options)

    torch.save = save
    try:
        yield truths
    finally:
        torch.save = original


@contextmanager
def pretended(modules: Mapping[str, Iterable[Any]]) -> Iterator[None]:
    """Puts classes and functions into modules of these names while a checkpoint is written, so that the pickle refers
    to them by the names that the real tool has. Nothing remains afterwards."""
    absent = object()
    before = {name: sys.modules.get(name, absent) for full in modules for name in _with_parents(full)}
    changed: list[tuple[Any, str, Any]] = []

    def put(owner: Any, attribute: str, value: Any) -> None:
        changed.append((owner, attribute, getattr(owner, attribute, absent)))
        setattr(owner, attribute, value)

    for name, module in before.items():
        if module is absent:
            sys.modules[name] = ModuleType(name)
    for name, members in modules.items():
        for member in members:
            put(member, "__module__", name)
            put(member, "__qualname__", member.__name__)
            put(sys.modules[name], member.__name__, member)
    try:
        yield
    finally:
        for owner, attribute, value in reversed(changed):
            delattr(owner, attribute) if value is absent else setattr(owner, attribute, value)
        for name, module in before.items():
            if module is absent:
                del sys.modules[name]


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
