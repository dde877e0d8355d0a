"""Hooks of blocks. Unlike PyTorch's, they cannot change the inputs or the output: what they return is ignored."""

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class HookHandle:
    """Detaches a hook; as a context manager, at the end of the `with` block."""

    def __init__(self) -> None:
        self._hooks: Callable[[], Any] = lambda: None
        self._key: int | None = None

    def attach(self, hooks_dict: "OrderedDict[int, Any]", hook: Callable[..., Any]) -> None:
        assert self._key is None, "The same handle cannot be attached twice."
        self._key = id(hook)
        self._hooks = weakref.ref(hooks_dict)
        hooks_dict[self._key] = SilentHook(hook)

    def detach(self) -> None:
        hooks = self._hooks()
        if hooks is not None:
            hooks.pop(self._key, None)

    remove = detach  # PyTorch's name

    def __getstate__(self) -> tuple[Any, int | None]:
        return self._hooks(), self._key

    def __setstate__(self, state: tuple[Any, int | None]) -> None:
        hooks, self._key = state
        self._hooks = weakref.ref(OrderedDict() if hooks is None else hooks)

    def __enter__(self) -> "HookHandle":
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()


class SilentHook:
    """Calls a hook and returns None, because PyTorch would replace the output by what a hook returns."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook

    def __call__(self, *args: Any) -> None:
        self.hook(*args)
