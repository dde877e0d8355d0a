"""`mxnet.optimizer.Updater`: an optimizer with the states of the weights that it updates."""

from typing import Any

from leafwise_gluon.arrays.legacy import wrap_legacy
from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.base import refusal
from leafwise_gluon.modes import is_np_array
from leafwise_gluon.optimizer.base import Optimizer


class Updater:
    """Updates weights in place: `updater(index, gradient, weight)`. Optimizers get arrays of `mxnet.nd`.

    >>> from leafwise_gluon import np, optimizer
    >>> updater = optimizer.get_updater(optimizer.create("sgd", learning_rate=1.0))
    >>> weight = np.ones(2)
    >>> updater(0, np.array([1, 2]), weight)
    >>> weight
    array([ 0., -1.])
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.states: dict[Any, Any] = {}
        self.states_synced: dict[Any, bool] = {}
        self.aggregate_updates = optimizer.aggregate_num > (0 if optimizer.is_v1 else 1)

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        many = isinstance(index, list | tuple)
        indices, grads, weights = (list(value) if many else [value] for value in (index, grad, weight))
        grads, weights = ([self._classic(array) for array in arrays] for arrays in (grads, weights))
        if weights:
            self.optimizer.on_device(weights[0].ctx.device_id)
        for each, array in zip(indices, weights, strict=True):
            if each not in self.states:
                self.states[each] = self.optimizer.create_state_multi_precision(each, array)
                self.states_synced[each] = True
        states = [self.states[each] for each in indices]
        if self.aggregate_updates:
            self._update_together(indices, weights, grads, states)
            return
        for row in zip(indices, weights, grads, states, strict=True):
            self.optimizer.update_multi_precision(*(row if self.optimizer.is_v1 else ([value] for value in row)))

    def _update_together(self, *columns: list[Any]) -> None:
        """Updates weights of one dtype together, at most `aggregate_num` at a time."""
        rows_by_dtype: dict[Any, list[Any]] = {}
        for row in zip(*columns, strict=True):
            rows_by_dtype.setdefault(row[1].dtype, []).append(row)
        size = self.optimizer.aggregate_num
        for rows in rows_by_dtype.values():
            for start in range(0, len(rows), size):
                part = zip(*rows[start : start + size], strict=True)
                self.optimizer.update_multi_precision(*(list(column) for column in part))

    def _classic(self, array: Any) -> Any:
        """As in MXNet, an array of `mxnet.np` becomes one of `mxnet.nd` over the same memory."""
        if isinstance(array, ndarray) and not getattr(self.optimizer, "allow_np_array", is_np_array()):
            raise ValueError("Converting np.ndarray to mx.nd.NDArray is not allowed")
        return wrap_legacy(array.tensor.detach(), array.ctx)

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        raise refusal("Updater.get_states, which pickles", "use Trainer.save_states, or keep updater.states yourself")

    def set_states(self, states: bytes) -> None:
        raise refusal("Updater.set_states, which unpickles", "use Trainer.load_states, or set updater.states yourself")


def get_updater(optimizer: Optimizer) -> Updater:
    """An Updater for an optimizer."""
    return Updater(optimizer)
