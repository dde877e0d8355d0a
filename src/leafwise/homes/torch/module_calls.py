"""Which module is running, and which of its calls that is. `uses` asks it for every operation.

Checkpointing with re-entry runs a segment of the forward again during backward. The repetition is given the numbers of
the calls that it repeats.
"""

from threading import local

# The calls that a segment made, each as the path of the module and the number of the call, by the module's identity.
CallsByModule = dict[int, list[tuple[str, int]]]


class ModuleCall:
    """A running call of a module: the module, its path, the number of the call, and how often each leaf has entered
    each operation."""

    __slots__ = ("call", "module", "path", "turns")

    def __init__(self, module: int, path: str, call: int, turns: dict[tuple[str, str], int] | None = None) -> None:
        self.module = module
        self.path = path
        self.call = call
        self.turns = dict(turns or {})

    def copy(self) -> "ModuleCall":
        return ModuleCall(self.module, self.path, self.call, self.turns)


class CheckpointedSegment:
    """A part of the forward that is checkpointed with re-entry: the call that it ran in, and the calls that it made."""

    def __init__(self, frame: ModuleCall) -> None:
        self.frame = frame.copy()
        self.calls: CallsByModule = {}

    def replayed(self) -> tuple[ModuleCall, CallsByModule]:
        """What the repetition starts with: the call that it runs in, and the calls still to come, the next one last."""
        return self.frame.copy(), {key: list(reversed(calls)) for key, calls in self.calls.items()}


class ThreadPosition(local):
    """What a thread is running: module calls, the outermost first; segments being checkpointed; segments being
    repeated.

    Each thread has its own, because backward, and the repetition of a segment in it, may run in another thread than
    forward.
    """

    def __init__(self) -> None:
        self.frames = [ModuleCall(0, "", 0)]
        self.segments: list[CheckpointedSegment] = []
        self.replays: list[CallsByModule] = []
