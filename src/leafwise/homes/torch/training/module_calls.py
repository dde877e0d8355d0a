"""Which module is running, and which of its calls that is. `uses` needs this for every operation.

Reentrant checkpointing runs a segment of the forward again during backward. The second run gets the call numbers of the
first.
"""

from threading import local

# The calls of a segment, by the identity of the module: the path of the module and the number of the call.
CallsByModule = dict[int, list[tuple[str, int]]]


class ModuleCall:
    """A running call of a module: the module, its path, the number of the call, and how often each operation has used
    each leaf."""

    __slots__ = ("call", "module", "path", "turns")

    def __init__(self, module: int, path: str, call: int, turns: dict[tuple[str, str], int] | None = None) -> None:
        self.module = module
        self.path = path
        self.call = call
        self.turns = dict(turns or {})

    def copy(self) -> "ModuleCall":
        return ModuleCall(self.module, self.path, self.call, self.turns)


class CheckpointedSegment:
    """A part of the forward with reentrant checkpointing: the call in which it ran, and the calls that it made."""

    def __init__(self, frame: ModuleCall) -> None:
        self.frame = frame.copy()
        self.calls: CallsByModule = {}

    def replayed(self) -> tuple[ModuleCall, CallsByModule]:
        """The start of the second run: the call in which it runs, and the calls to come, the next one last."""
        return self.frame.copy(), {key: list(reversed(calls)) for key, calls in self.calls.items()}


class ThreadPosition(local):
    """What a thread is running: module calls, the outermost first; segments in their first run; segments in their
    second run.

    Each thread has its own, because backward, and the second run of a segment in it, may run in another thread than
    forward.
    """

    def __init__(self) -> None:
        self.frames = [ModuleCall(0, "", 0)]
        self.segments: list[CheckpointedSegment] = []
        self.replays: list[CallsByModule] = []
