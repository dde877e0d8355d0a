"""The gradient of a parameter, use by use.

While a `UseCapture` is entered, every PyTorch operation on one of the parameters gets an alias of it instead, and a
hook on the alias records the gradient of that use. Hooks on every module show which module is running.

Checkpointing runs a part of the forward again during backward. If it is not reentrant (`use_reentrant=False`),
gradients flow through the first run, and the second run only provides values. If it is, gradients flow through the
second run, which gets the call numbers of the first.

Hooks are called in every thread of the process, and several threads may use one model. A capture counts the operations
of its own thread, and every backward through its own uses, whatever its thread.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from threading import Lock, get_ident, local
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointFunction

from leafwise.core.capabilities.uses import UNATTRIBUTED, TrackingUses, Use

# The calls of a segment, by the identity of the module: the path of the module and the number of the call.
CallsByModule = dict[int, list[tuple[str, int]]]


class ModuleCall(NamedTuple):
    """A running call of a module: the module, its path, the number of the call, and how often each operation has used
    each leaf."""

    module: int
    path: str
    call: int
    turns: dict[tuple[str, str], int]

    def copied(self) -> "ModuleCall":
        return self._replace(turns=dict(self.turns))


class CheckpointedSegment:
    """A part of the forward with reentrant checkpointing: the call in which it ran, and the calls that it made."""

    def __init__(self, frame: ModuleCall) -> None:
        self.frame = frame.copied()
        self.calls: CallsByModule = {}

    def replayed(self) -> tuple[ModuleCall, CallsByModule]:
        """The start of the second run: the call in which it runs, and the calls to come, the next one last."""
        return self.frame.copied(), {key: list(reversed(calls)) for key, calls in self.calls.items()}


class ThreadPosition(local):
    """What a thread is running: module calls, the outermost first; segments in their first run; segments in their
    second run.

    Each thread has its own, because backward, and the second run of a segment in it, may run in another thread than
    forward.
    """

    def __init__(self) -> None:
        self.frames = [ModuleCall(0, "", 0, {})]
        self.segments: list[CheckpointedSegment] = []
        self.replays: list[CallsByModule] = []


class UseCapture:
    """See the docstring of the module. Entering it returns a function for the gradients so far, by leaf and use."""

    def __init__(self, nodes: dict[int, list[str]], leaves: dict[str, torch.Tensor]) -> None:
        self._nodes = nodes
        self._names = {id(tensor): name for name, tensor in leaves.items()}
        self._leaves = leaves
        self._gradients: dict[str, dict[Use, torch.Tensor]] = {name: {} for name in leaves}
        self._totals: dict[str, torch.Tensor] = {}
        self._order: dict[tuple[str, Use], int] = {}
        self._position = ThreadPosition()
        self._calls: dict[int, int] = {}
        self._calls_in_backward: dict[int, int] = {}
        self._backwards: set[tuple[str, int]] = set()  # each leaf with the number of a backward through its uses
        self._stack = ExitStack()
        self._thread = get_ident()

    # -- entering and leaving ----------------------------------------------------------------------------

    def __enter__(self) -> Callable[[], dict[str, dict[Use, torch.Tensor]]]:
        self._thread = get_ident()
        with self._stack as stack:
            with _lock:  # PyTorch does not lock while it registers hooks
                self._stack.callback(register_module_forward_pre_hook(self._starts).remove)
                self._stack.callback(register_module_forward_hook(self._ends, always_call=True).remove)
                leaf: Any
                for name, leaf in self._leaves.items():
                    self._stack.callback(leaf.register_hook(self._total_of(name, leaf)).remove)
            self._stack.enter_context(_segments_reported(self))
            self._stack.enter_context(_CaptureMode(self))
            self._stack = stack.pop_all()
        return self.read

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def read(self) -> dict[str, dict[Use, torch.Tensor]]:
        """The gradients by use, in the order of the forward pass, and the rest that belongs to no use."""
        gradients_by_leaf = {}
        for name, gradients in self._gradients.items():
            by_use = {use: gradients[use] for use in sorted(gradients, key=lambda use: self._order[name, use])}
            total = self._totals.get(name)
            rest = None if total is None else _rest(total, list(gradients.values()))
            if rest is not None:
                by_use[Use("", 0, UNATTRIBUTED)] = rest
            gradients_by_leaf[name] = by_use
        return gradients_by_leaf

    def _total_of(self, name: str, leaf: torch.Tensor) -> Callable[[torch.Tensor], None]:
        # For a leaf on the CPU the hook runs in the thread that called backward, for others in a thread of the device.
        in_calling_thread = leaf.device.type == "cpu"

        def note(gradient: torch.Tensor) -> None:
            # The hooks of all uses that this backward goes through have run before this one.
            ours = self.is_in_backward(leaf) or self.is_ours()
            # If this backward went through uses of the leaf that another capture counts, it belongs to that.
            others = (capture for capture in tuple(_captures) if capture is not self)
            if ours or not (in_calling_thread or any(other.is_in_backward(leaf) for other in others)):
                self._totals[name] = _added(self._totals.get(name), gradient)

        return note

    # -- which module is running -------------------------------------------------------------------------

    def _starts(self, module: nn.Module, inputs: Any) -> None:
        key = id(module)
        if key not in self._nodes or not self.is_ours():
            return
        position = self._position
        repeated = position.replays[-1].get(key) if position.replays else None
        if repeated:
            path, call = repeated.pop()
        else:
            # A call during backward that does not run a known segment again is not counted as a call of the forward.
            in_backward = torch._C._current_graph_task_id() != -1
            calls = self._calls_in_backward if in_backward else self._calls
            path, call = self._path_of(key), calls.get(key, 0)
            calls[key] = call + 1
        for segment in position.segments:
            segment.calls.setdefault(key, []).append((path, call))
        position.frames.append(ModuleCall(key, path, call, {}))

    def _ends(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        frames = self._position.frames
        if self.is_ours() and any(frame.module == id(module) for frame in frames[1:]):
            while frames.pop().module != id(module):
                pass

    def is_in_backward(self, leaf: torch.Tensor) -> bool:
        """Whether the running backward went through uses of the leaf that this capture counts."""
        name = self._names.get(id(leaf))
        return name is not None and (name, torch._C._current_graph_task_id()) in self._backwards

    def is_ours(self) -> bool:
        """Whether the running code counts: it runs in the thread of the capture, or again runs code from there."""
        return get_ident() == self._thread or bool(self._position.replays)

    def _path_of(self, key: int) -> str:
        """The path of a module; if it is used in several places, the path below the module that is running."""
        paths = self._nodes[key]
        above = self._position.frames[-1].path
        below = [path for path in paths if not above or path.startswith(above + ".")]
        return (below or paths)[0]

    @contextmanager
    def checkpointing(self) -> Iterator[CheckpointedSegment]:
        """Around a segment of the forward with reentrant checkpointing."""
        segments = self._position.segments
        segments.append(segment := CheckpointedSegment(self._position.frames[-1]))
        try:
            yield segment
        finally:
            segments.remove(segment)

    @contextmanager
    def replaying(self, segment: CheckpointedSegment) -> Iterator[None]:
        """Around the second run of such a segment."""
        position = self._position
        frame, calls = segment.replayed()
        depth = len(position.frames)
        position.frames.append(frame)
        position.replays.append(calls)
        try:
            with _CaptureMode(self) if not self._is_active() else nullcontext():
                yield
        finally:
            position.replays.pop()
            del position.frames[depth:]

    def _is_active(self) -> bool:
        """Whether the calls of this thread are intercepted; backward on a GPU runs in its own thread."""
        active = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        return any(isinstance(mode, _CaptureMode) and mode.capture is self for mode in active)

    # -- operations on parameters ------------------------------------------------------------------------

    def entering(self, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        parameter = tensor if isinstance(tensor, nn.Parameter) else getattr(tensor, "leafwise_parameter", None)
        name = self._names.get(id(parameter))
        if name is None or not tensor.requires_grad:
            return tensor
        if not torch.is_grad_enabled() and not self._position.segments:
            return tensor
        frame = self._position.frames[-1]
        turn = frame.turns.get((name, operation), 0)
        frame.turns[name, operation] = turn + 1
        use = Use(frame.path, frame.call, operation, turn)
        self._order.setdefault((name, use), len(self._order))
        if not torch.is_grad_enabled():
            return tensor  # counted, because the checkpoint will run it again
        entered: Any
        with torch._C.DisableTorchFunction():
            entered = torch.ops.aten.alias(tensor)
            if not entered.requires_grad:
                return tensor  # inside a torch.func transform, which computes gradients in its own way
            entered.register_hook(lambda gradient: self._note(name, use, gradient))
        entered.leafwise_parameter = parameter  # so that a capture around this one recognizes it
        return entered  # type: ignore[no-any-return]

    def _note(self, name: str, use: Use, gradient: torch.Tensor) -> None:
        self._backwards.add((name, torch._C._current_graph_task_id()))
        self._gradients[name][use] = _added(self._gradients[name].get(use), gradient)


# These are about the tensor itself, not about its values.
_ABOUT_ITSELF = frozenset({
    "__deepcopy__", "__delete__", "__dir__", "__format__", "__hash__", "__len__", "__reduce__", "__reduce_ex__",
    "__repr__", "__set__", "__setstate__", "_is_view", "_typed_storage", "backward", "data_ptr", "detach", "dim",
    "element_size", "get_device", "grad", "is_complex", "is_contiguous", "is_floating_point", "is_same_size",
    "is_set_to", "is_shared", "numel", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_",
    "resize_", "retain_grad", "set_", "share_memory_", "size", "storage", "storage_offset", "stride", "type",
    "untyped_storage",
})  # fmt: skip

# Properties that compute from the values, like operations.
_COMPUTED = frozenset({"T", "mT", "H", "mH", "real", "imag"})


def _operation_name(func: Any) -> str | None:
    """The name of an intercepted call in a `Use`; None if the call is only about the tensor itself."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", name)
        return name if name in _COMPUTED else None
    return None if name in _ABOUT_ITSELF else name


class _CaptureMode(TorchFunctionMode):
    """Passes the parameters of every operation through the capture."""

    def __init__(self, capture: UseCapture) -> None:
        super().__init__()
        self.capture = capture

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operation = _operation_name(func)
        if operation is None:
            return func(*args, **kwargs)

        def enter(tensor: torch.Tensor) -> torch.Tensor:
            return self.capture.entering(tensor, operation)

        return func(*tree_map_only(torch.Tensor, enter, tuple(args)), **tree_map_only(torch.Tensor, enter, kwargs))


_lock = Lock()
_captures: list[UseCapture] = []  # the captures that are entered, in any thread


_function: Any = CheckpointFunction
_forward, _backward = _function.forward, _function.backward


@contextmanager
def _segments_reported(capture: UseCapture) -> Iterator[None]:
    """While a capture is entered, reentrant checkpoints report which segment of the forward they run again."""
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
        for capture, segment in getattr(ctx, "leafwise_segments", ()):  # absent if the forward ran before the capture
            if capture in _captures:
                stack.enter_context(capture.replaying(segment))
        return _backward(ctx, *gradients)


def _added(before: torch.Tensor | None, gradient: torch.Tensor) -> torch.Tensor:
    gradient = gradient.detach()
    return gradient.clone() if before is None else before + gradient


def _rest(total: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor | None:
    """The difference between the total and its parts; None if it is only rounding."""
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
    def capture(self, nodes: dict[int, list[str]], leaves: dict[str, Any]) -> UseCapture:
        return UseCapture(nodes, leaves)
