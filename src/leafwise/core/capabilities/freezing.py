"""Which leaves training changes. See `lw.freeze` and `lw.thaw`."""

from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.errors import Unsupported


class Freezing(Capability):
    action = "freeze"
    why = "its arrays do not record whether they are trained"

    def set_trainable(self, values: list[Any], trainable: bool) -> None:
        """Makes arrays trainable, or not."""
        raise self.missing("freeze")

    def cannot_train(self, value: Any, trainable: bool) -> str:
        """Why an array cannot be thawed or frozen; empty if it can."""
        return ""

    def drifts(self, owner: Any, name: str) -> bool:
        """Whether training changes a buffer, such as running statistics."""
        return False

    def hold_buffers(self, owner: Any, on: bool) -> None:
        """Keeps the drifting buffers of a node as they are, or lets training change them again."""
        raise self.missing("freeze buffers")

    def is_held(self, owner: Any, name: str) -> bool:
        """Whether a buffer is kept as it is by `hold_buffers`."""
        return False

    def trainable_part(self, root: Any, trained: frozenset[str], frozen: frozenset[tuple[str, ...]]) -> Any:
        """What selects the trained leaves of `root` in the functions of the framework: a filter, or a mask. `trained`
        are the paths of the leaves that are trained now, and `frozen` the names of those that the caller excludes."""
        raise Unsupported(self.home.name, "make a filter or a mask", "its optimizers take lw.groups(model)")
