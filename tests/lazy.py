"""Libraries that are imported when a test first uses them: each process of `make test` imports every test file, but
runs only some of them."""

from importlib import import_module
from typing import Any


class Lazy:
    """Like `import name`, but imports when an attribute is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
