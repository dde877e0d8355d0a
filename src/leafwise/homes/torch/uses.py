"""The gradient of a parameter, use by use.

While a `Capture` is entered, every call of PyTorch that takes one of the parameters gets, in its place, the parameter
passed through an alias, whose gradient is noted on its way. Which module is running is told by hooks on every module.

Checkpointing runs a part of the forward again during backward. Without re-entry (`use_reentrant=False`) gradients flow
through what ran first, and what runs again is only looked at for its values; with re-entry they flow through the
repetition, which is given the numbers of the calls that it repeats.

Hooks see every thread of the process, and several threads may use one model. A capture counts what its own thread
runs, and every backward that its own uses are part of, whichever thread runs that.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from threading import Lock, get_ident, local
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointFunction

from leafwise.core.capabilities.uses import UNATTRIBUTED, TrackingUses, Use

# What is asked of a parameter itself, and not of the numbers in it.
_ABOUT_ITSELF = frozenset(
    [
        "__deepcopy__",
        "__delete__",
        "__dir__",
        "__format__",
        "__get__",
        "__hash__",
        "__len__",
        "__reduce__",
        "__reduce_ex__",
        "__repr__",
        "__set__",
        "__setstate__",
        "_is_view",
        "_typed_storage",
        "backward",
        "data_ptr",
        "detach",
        "dim",
        "element_size",
        "get_device",
        "grad",
        "is_complex",
        "is_contiguous",
        "is_floating_point",
        "is_same_size",
        "is_set_to",
        "is_shared",
        "numel",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "requires_grad_",
        "resize_",
        "retain_grad",
        "set_",
        "share_memory_",
        "size",
        "storage",
        "storage_offset",
        "stride",
        "type",
        "untyped_storage",
    ]
)


# Properties whose value is computed from the numbers, as an operation's is.
_COMPUTED = frozenset({"T", "mT", "H", "mH", "real", "imag"})


class _Frame:
    """A module that is running: where, in which of its calls, and how often each leaf has entered each operation."""

    __slots__ = ("call", "module", "path", "turns")

    def __init__(self, module: int, path: str, call: int, turns: dict[tuple[str, str], int] | None = None) -> None:
        self.module = module
        self.path = path
        self.call = call
        self.turns = dict(turns or {})


class _Segment:
    """A part of the forward that is checkpointed with re-entry: in which frame it ran, and which calls it made."""

    def __init__(self, frame: _Frame) -> None:
        self.frame = _Frame(frame.module, frame.path, frame.call, frame.turns)
        self.calls: dict[int, list[tuple[str, int]]] = {}

    def replayed(self) -> tuple[_Frame, dict[int, list[tuple[str, int]]]]:
        frame = self.frame
        calls = {key: list(reversed(calls)) for key, calls in self.calls.items()}
        return _Frame(frame.module, frame.path, frame.call, frame.turns), calls


class _Position(local):
    """What a thread is running: the modules, the outermost first; parts that are checkpointed; parts that are repeated.

    Of each thread its own, since backward, and the repetition of a part in it, may run in another than forward.
    """

    def __init__(self) -> None:
        self.frames = [_Frame(0, "", 0)]
        self.segments: list[_Segment] = []
        self.replays: list[dict[int, list[tuple[str, int]]]] = []


class Capture:
    """See the module's docstring; what is entered gives the gradients so far, by leaf and use."""

    def __init__(self, nodes: dict[int, list[str]], leaves: dict[str, torch.Tensor]) -> None:
        self._nodes = nodes
        self._names = {id(tensor): name for name, tensor in leaves.items()}
        self._leaves = leaves
        self._gradients: dict[str, dict[Use, torch.Tensor]] = {name: {} for name in leaves}
        self._totals: dict[str, torch.Tensor] = {}
        self._order: dict[tuple[str, Use], int] = {}
        self._here = _Position()
        self._calls: dict[int, int] = {}
        self._calls_in_backward: dict[int, int] = {}
        self._backwards: set[tuple[str, int]] = set()  # leaves whose uses a backward went through, with its number
        self._stack = ExitStack()
        self._thread = get_ident()

    # -- entering and leaving ----------------------------------------------------------------------------

    def __enter__(self) -> Callable[[], dict[str, dict[Use, torch.Tensor]]]:
        self._thread = get_ident()
        with self._stack as stack:
            with _lock:  # PyTorch numbers hooks without one
                self._stack.callback(register_module_forward_pre_hook(self._starts).remove)
                self._stack.callback(register_module_forward_hook(self._ends, always_call=True).remove)
                leaf: Any
                for name, leaf in self._leaves.items():
                    self._stack.callback(leaf.register_hook(self._total_of(name, leaf)).remove)
            self._stack.enter_context(_checkpoints_tell(self))
            self._stack.enter_context(_Mode(self))
            self._stack = stack.pop_all()
        return self.read

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def read(self) -> dict[str, dict[Use, torch.Tensor]]:
        """The gradients by use, in the order of the forward pass, with a row for what no use accounts for."""
        found = {}
        for name, gradients in self._gradients.items():
            its = {use: gradients[use] for use in sorted(gradients, key=lambda use: self._order[name, use])}
            total = self._totals.get(name)
            rest = None if total is None else _rest(total, list(gradients.values()))
            if rest is not None:
                its[Use("", 0, UNATTRIBUTED)] = rest
            found[name] = its
        return found

    def _total_of(self, name: str, leaf: torch.Tensor) -> Callable[[torch.Tensor], None]:
        # Of a leaf on the CPU, this runs in the thread that called backward; of others, in a thread of the device.
        thread_tells = leaf.device.type == "cpu"

        def note(gradient: torch.Tensor) -> None:
            # By now, the gradient has passed all the uses of the leaf that this backward goes through.
            ours = self.is_in_backward(leaf) or self.is_ours()
            if ours or not (thread_tells or _is_of_another(self, leaf)):
                self._totals[name] = _added(self._totals.get(name), gradient)

        return note

    # -- which module is running -------------------------------------------------------------------------

    def _starts(self, module: nn.Module, inputs: Any) -> None:
        key = id(module)
        if key not in self._nodes or not self.is_ours():
            return
        here = self._here
        again = here.replays[-1].get(key) if here.replays else None
        if again:
            path, call = again.pop()
        else:
            # What runs during backward, and repeats no segment that is known, does not count as a further call.
            in_backward = torch._C._current_graph_task_id() != -1
            calls = self._calls_in_backward if in_backward else self._calls
            path, call = self._path_of(key), calls.get(key, 0)
            calls[key] = call + 1
        for segment in here.segments:
            segment.calls.setdefault(key, []).append((path, call))
        here.frames.append(_Frame(key, path, call))

    def _ends(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        frames = self._here.frames
        if self.is_ours() and any(frame.module == id(module) for frame in frames[1:]):
            while frames.pop().module != id(module):
                pass

    def is_in_backward(self, leaf: torch.Tensor) -> bool:
        """Whether the backward that runs went through uses of the leaf that are counted here."""
        name = self._names.get(id(leaf))
        return name is not None and (name, torch._C._current_graph_task_id()) in self._backwards

    def is_ours(self) -> bool:
        """Whether what runs belongs here: in the thread of the capture, or in another that repeats what ran there."""
        return get_ident() == self._thread or bool(self._here.replays)

    def _path_of(self, key: int) -> str:
        """The path of a module; of one that is used in several places, that below the module which is running."""
        paths = self._nodes[key]
        above = self._here.frames[-1].path
        below = [path for path in paths if not above or path.startswith(above + ".")]
        return (below or paths)[0]

    @contextmanager
    def checkpointing(self) -> Iterator[_Segment]:
        """Around a part of the forward that is checkpointed with re-entry."""
        segments = self._here.segments
        segments.append(segment := _Segment(self._here.frames[-1]))
        try:
            yield segment
        finally:
            segments.remove(segment)

    @contextmanager
    def replaying(self, segment: _Segment) -> Iterator[None]:
        """Around the repetition of such a part."""
        here = self._here
        frame, calls = segment.replayed()
        depth = len(here.frames)
        here.frames.append(frame)
        here.replays.append(calls)
        try:
            with _Mode(self) if not self._is_active() else nullcontext():
                yield
        finally:
            here.replays.pop()
            del here.frames[depth:]

    def _is_active(self) -> bool:
        """Whether calls of this thread are looked at; backward on a GPU runs in a thread of its own."""
        active = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        return any(isinstance(mode, _Mode) and mode.capture is self for mode in active)

    # -- where parameters enter operations ---------------------------------------------------------------

    def entering(self, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        parameter = tensor if isinstance(tensor, nn.Parameter) else getattr(tensor, "leafwise_parameter", None)
        name = self._names.get(id(parameter))
        if name is None or not tensor.requires_grad:
            return tensor
        if not torch.is_grad_enabled() and not self._here.segments:
            return tensor
        frame = self._here.frames[-1]
        turn = frame.turns.get((name, operation), 0)
        frame.turns[name, operation] = turn + 1
        use = Use(frame.path, frame.call, operation, turn)
        self._order.setdefault((name, use), len(self._order))
        if not torch.is_grad_enabled():
            return tensor  # counted, because the checkpoint will repeat it
        entered: Any
        with torch._C.DisableTorchFunction():
            entered = torch.ops.aten.alias(tensor)
            if not entered.requires_grad:
                return tensor  # inside a transform of torch.func, which has gradients of its own
            entered.register_hook(lambda gradient: self._note(name, use, gradient))
        entered.leafwise_parameter = parameter  # for another capture around this one
        return entered  # type: ignore[no-any-return]

    def _note(self, name: str, use: Use, gradient: torch.Tensor) -> None:
        self._backwards.add((name, torch._C._current_graph_task_id()))
        self._gradients[name][use] = _added(self._gradients[name].get(use), gradient)


class _Mode(TorchFunctionMode):
    """Has every parameter that enters an operation pass through the capture."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self.capture = capture

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operation = getattr(func, "__name__", str(func))
        if operation == "__get__":
            operation = getattr(getattr(func, "__self__", None), "__name__", operation)
            operation = operation if operation in _COMPUTED else "__get__"
        if operation in _ABOUT_ITSELF:
            return func(*args, **kwargs)

        def enter(tensor: torch.Tensor) -> torch.Tensor:
            return self.capture.entering(tensor, operation)

        return func(*tree_map_only(torch.Tensor, enter, tuple(args)), **tree_map_only(torch.Tensor, enter, kwargs))


_lock = Lock()
_captures: list[Capture] = []  # those that are entered, in any thread


def _is_of_another(capture: Capture, leaf: torch.Tensor) -> bool:
    """Whether the backward that runs went through uses of this leaf that another capture noted."""
    return any(other is not capture and other.is_in_backward(leaf) for other in tuple(_captures))


_function: Any = CheckpointFunction
_forward, _backward = _function.forward, _function.backward


@contextmanager
def _checkpoints_tell(capture: Capture) -> Iterator[None]:
    """Has checkpoints with re-entry say which part of the forward they repeat, while any capture is entered."""
    with _lock:
        _captures.append(capture)
        _function.forward, _function.backward = staticmethod(_noted_forward), staticmethod(_noted_backward)
    try:
        yield
    finally:
        with _lock:
            _captures.remove(capture)
            if not _captures:
                _function.forward, _function.backward = staticmethod(_forward), staticmethod(_backward)


def _noted_forward(ctx: Any, *args: Any) -> Any:
    with ExitStack() as stack:
        ours = [capture for capture in tuple(_captures) if capture.is_ours()]
        ctx.leafwise_segments = [(capture, stack.enter_context(capture.checkpointing())) for capture in ours]
        return _forward(ctx, *args)


def _noted_backward(ctx: Any, *gradients: Any) -> Any:
    with ExitStack() as stack:
        for capture, segment in getattr(ctx, "leafwise_segments", ()):  # none, of what ran before
            if capture in _captures:
                stack.enter_context(capture.replaying(segment))
        return _backward(ctx, *gradients)


def _added(before: torch.Tensor | None, gradient: torch.Tensor) -> torch.Tensor:
    gradient = gradient.detach()
    return gradient.clone() if before is None else before + gradient


def _rest(total: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor | None:
    """What the parts do not account for, unless it is rounding."""
    if not parts:
        return total
    if total.is_sparse or any(part.is_sparse for part in parts):
        total, parts = total.to_dense(), [part.to_dense() for part in parts]
    wide = torch.promote_types(total.dtype, torch.float32)
    exact = sum((part.to(wide) for part in parts), torch.zeros_like(total, dtype=wide))
    magnitude = sum((part.to(wide).abs() for part in parts), total.to(wide).abs())
    rest = total.to(wide) - exact
    rounding = 4 * (len(parts) + 1) * torch.finfo(total.dtype).eps * magnitude
    lost_anyway = ~torch.isfinite(total) & ~torch.isfinite(exact)
    if bool(((rest.abs() <= rounding) | lost_anyway).all()):
        return None
    return rest.to(total.dtype)


class TorchTrackingUses(TrackingUses):
    def capture(self, nodes: dict[int, list[str]], leaves: dict[str, Any]) -> Capture:
        return Capture(nodes, leaves)
