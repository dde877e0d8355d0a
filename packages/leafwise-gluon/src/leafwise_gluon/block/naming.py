"""Names of blocks in MXNet 1.x: `dense0_`, `dense1_`, and `net_dense0_` inside of `net.name_scope()`."""

import threading

from leafwise_gluon.class_names import shown_as
from leafwise_gluon.parameter.dictionary import ParameterDict


class NameManager:
    """Counts the blocks of each kind. As a context manager, it starts to count anew."""

    def __init__(self) -> None:
        self._counter: dict[str, int] = {}
        self._outer: list[NameManager] = []

    def get(self, name: str | None, hint: str) -> str:
        """The name, or if it is None, the hint with its next number."""
        if name:
            return name
        count = self._counter.get(hint, 0)
        self._counter[hint] = count + 1
        return f"{hint}{count}"

    def __enter__(self) -> "NameManager":
        self._outer.append(_CURRENT.manager)
        _CURRENT.manager = self
        return self

    def __exit__(self, *error: object) -> None:
        _CURRENT.manager = self._outer.pop()


@shown_as("Prefix")
class NamePrefix(NameManager):
    """A name manager that puts a prefix before every name."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        return self._prefix + super().get(name, hint)


Prefix = NamePrefix


class _Current(threading.local):
    def __init__(self) -> None:
        self.manager = NameManager()
        self.scope: BlockScope | None = None


_CURRENT = _Current()


def current() -> NameManager:
    """The manager that names blocks and symbols now."""
    return _CURRENT.manager


class BlockScope:
    """The name, the prefix and the parameters of a block; as a context manager, blocks made inside get its prefix."""

    def __init__(self, prefix: str | None, params: ParameterDict | None, hint: str) -> None:
        self._is_empty = prefix == ""
        self._counter: dict[str, int] = {}
        self._outer: list[tuple[BlockScope | None, NameManager]] = []
        scope = _CURRENT.scope
        if scope is None:
            own = current().get(None, hint) + "_" if prefix is None else prefix
            self.prefix = own
            self.params = ParameterDict(own)
        else:
            own = scope._next(hint) if prefix is None else prefix
            self.prefix = scope.prefix + own
            self.params = ParameterDict(scope.params.prefix + own, scope.params.shared)
        if params is not None:
            self.params = ParameterDict(params.prefix, params)

    @property
    def name(self) -> str:
        return self.prefix.removesuffix("_")

    def _next(self, hint: str) -> str:
        count = self._counter.get(hint, 0)
        self._counter[hint] = count + 1
        return f"{hint}{count}_"

    def __enter__(self) -> "BlockScope":
        if not self._is_empty:
            self._outer.append((_CURRENT.scope, _CURRENT.manager))
            _CURRENT.scope, _CURRENT.manager = self, Prefix(self.prefix)
        return self

    def __exit__(self, *error: object) -> None:
        if not self._is_empty:
            _CURRENT.scope, _CURRENT.manager = self._outer.pop()
