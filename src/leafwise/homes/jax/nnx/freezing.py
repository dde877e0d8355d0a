"""Freezing in Flax NNX. The metadata of a Variable records that it is frozen, so it survives `nnx.split`, `nnx.merge`,
`nnx.jit` and copies. Training uses it through a filter: `nnx.Optimizer(…, wrt=lw.trainable(model))`."""

from typing import Any, NamedTuple

from flax import nnx

from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.dtypes import is_inexact

_FROZEN = "leafwise_frozen"
_USES_RUNNING = "use_running_average"
_MODE = "leafwise_mode"  # `use_running_average` of a layer before its statistics were frozen
_ON_SET = "on_set_value"


def is_frozen(variable: nnx.Variable[Any]) -> bool:
    """Whether a Variable was frozen by `lw.freeze`."""
    return bool(variable.get_metadata(_FROZEN, False))


def keep_value(variable: nnx.Variable[Any], value: Any) -> Any:
    """A hook for setting the value of a Variable that keeps its present value."""
    return variable.get_raw_value()


class TrainableFilter(NamedTuple):
    """A filter of NNX for the Params that are trained: those that are not frozen, and whose path is not in `frozen`.
    A named tuple, so that two filters of the same model are equal, as `nnx.jit` expects of static values."""

    frozen: frozenset[tuple[str, ...]]

    def __call__(self, path: tuple[Any, ...], value: Any) -> bool:
        if not isinstance(value, nnx.Param) or is_frozen(value):
            return False
        return tuple(map(str, path)) not in self.frozen


class NnxFreezing(Freezing):
    def set_trainable(self, values: list[Any], trainable: bool) -> None:
        for value in values:
            _record(value, not trainable)

    def cannot_train(self, value: Any, trainable: bool) -> str:
        dtype = self.home.spec(value).dtype
        return f"only floating point can be trained, and it is {dtype}" if trainable and not is_inexact(dtype) else ""

    def drifts(self, owner: Any, name: str) -> bool:
        return isinstance(getattr(owner, name, None), nnx.BatchStat)

    def hold_buffers(self, owner: Any, on: bool) -> None:
        """A hook keeps the values of running statistics in every mode, and the layer uses them for normalization until
        `train()` is called on the model."""
        statistics = [value for value in vars(owner).values() if isinstance(value, nnx.BatchStat)]
        changed = [value for value in statistics if is_frozen(value) != on]
        mode = getattr(owner, _USES_RUNNING, None)
        for value in changed:
            hooks = value.get_metadata(_ON_SET, ())
            hooks = hooks if isinstance(hooks, tuple) else (hooks,)
            if on:
                value.set_metadata({**value.get_metadata(), _ON_SET: (*hooks, keep_value), _MODE: mode})
            else:
                mode = value.get_metadata(_MODE) if mode else mode
                kept = {name: each for name, each in value.get_metadata().items() if name not in (_ON_SET, _MODE)}
                others = tuple(hook for hook in hooks if hook is not keep_value)
                value.set_metadata({**kept, _ON_SET: others} if others else kept)
            _record(value, on)
        if changed and hasattr(owner, _USES_RUNNING):
            setattr(owner, _USES_RUNNING, True if on else mode)

    def is_held(self, owner: Any, name: str) -> bool:
        return self.drifts(owner, name) and is_frozen(getattr(owner, name))

    def trainable_part(self, root: Any, trained: frozenset[str], frozen: frozenset[tuple[str, ...]]) -> Any:
        return TrainableFilter(frozen)


def _record(variable: nnx.Variable[Any], frozen: bool) -> None:
    if frozen:
        variable.set_metadata(_FROZEN, True)
    elif variable.has_metadata(_FROZEN):
        variable.del_metadata(_FROZEN)
