"""`mxnet.optimizer.Optimizer`: the base class of the optimizers here and of users' own, and their registry."""

import warnings
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.legacy import NDArray, wrap_legacy
from leafwise_gluon.base import refusal
from leafwise_gluon.modes import is_np_array
from leafwise_gluon.names.inventory import inventory
from leafwise_gluon.names.table import instead_of


class Scales(NamedTuple):
    """What an update needs besides arrays: the learning rate, the weight decay, and the number of updates."""

    lr: float
    wd: float
    t: int


class Optimizer:
    """The base class of optimizers. Users' own implement `create_state`, and `update` (MXNet 1.x) or `step` (2.x).

    >>> from leafwise_gluon import optimizer
    >>> sgd = optimizer.create("sgd", learning_rate=0.5)
    >>> sgd.learning_rate
    0.5
    """

    opt_registry: ClassVar[dict[str, type["Optimizer"]]] = {}

    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: dict[int, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: Any = None,
        sym: Any = None,
        begin_num_update: int = 0,
        multi_precision: bool = False,
        param_dict: dict[int, Any] | None = None,
        aggregate_num: int | None = None,
        use_fused_step: bool | None = None,
    ) -> None:
        self.is_v1 = dialect.is_v1()
        if self.is_v1 and not (aggregate_num is None and use_fused_step is None):
            raise TypeError(f"{type(self).__name__} has no arguments aggregate_num and use_fused_step in MXNet 1.x")
        if sym is not None:
            raise refusal("optimizers with sym=", "leave it out; symbols are not supported")
        self.rescale_grad = rescale_grad
        self.lr_scheduler = lr_scheduler
        if lr_scheduler is None and learning_rate is None:
            learning_rate = 0.01
        self.lr = learning_rate
        if lr_scheduler is not None and learning_rate is not None and lr_scheduler.base_lr != learning_rate:
            # MXNet prints this warning.
            print(
                UserWarning(
                    "learning rate from ``lr_scheduler`` has been overwritten by ``learning_rate`` in optimizer."
                )
            )
            lr_scheduler.base_lr = learning_rate
        self.wd = wd
        self.begin_num_update = self.num_update = begin_num_update
        self._all_index_update_counts: dict[int, dict[Any, int]] = {0: {}}
        self._index_update_count = self._all_index_update_counts[0]
        self.clip_gradient = clip_gradient
        self.multi_precision = multi_precision
        self.aggregate_num = (0 if self.is_v1 else 1) if aggregate_num is None else aggregate_num
        assert param_idx2name is None or isinstance(param_idx2name, dict), (
            "param_idx2name should be a dict of param indexes to names."
        )
        self.idx2name = dict(param_idx2name or {})
        self.param_dict = param_dict or {}
        self.allow_np_array = is_np_array()
        self.use_fused_step = bool(use_fused_step)
        self.lr_mult: dict[Any, float] = {}
        self.wd_mult: dict[Any, float] = {}
        self.set_lr_mult({})
        self.set_wd_mult({})

    # -- the registry ----------------------------------------------------------------------------------

    @staticmethod
    def register(klass: type["Optimizer"]) -> type["Optimizer"]:
        """Makes an optimizer known by the name of its class, in any case."""
        assert isinstance(klass, type)
        name = klass.__name__.lower()
        known = Optimizer.opt_registry.get(name)
        if known is not None:
            warnings.warn(
                f"WARNING: New optimizer {klass.__module__}.{klass.__name__} is overriding existing optimizer "
                f"{known.__module__}.{known.__name__}",
                stacklevel=2,
            )
        Optimizer.opt_registry[name] = klass
        return klass

    @staticmethod
    def create_optimizer(name: str, **kwargs: Any) -> "Optimizer":
        """An optimizer by its name: `create_optimizer("adam", learning_rate=0.1)`."""
        klass = Optimizer.opt_registry.get(name.lower())
        if klass is not None and dialect.version() in getattr(klass, "versions", (1, 2)):
            return klass(**kwargs)
        of_mxnet = inventory(dialect.version())["mxnet.optimizer"].get(name.upper())
        if of_mxnet is not None:
            raise refusal(f"the optimizer {name!r}", instead_of(of_mxnet.path))
        raise ValueError(f"Cannot find optimizer {name}")

    # -- what subclasses implement -----------------------------------------------------------------------

    def create_state(self, index: Any, weight: Any) -> Any:
        """The state for a weight, such as its momentum. Called once per weight."""

    def step(self, indices: Any, weights: Any, grads: Any, states: Any) -> None:
        """Updates weights in place. Users' own optimizers implement this in MXNet 2.x."""
        raise NotImplementedError

    def fused_step(self, indices: Any, weights: Any, grads: Any, states: Any) -> None:
        """Like `step`; called in its place if `use_fused_step` is set."""
        raise NotImplementedError

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Updates a weight, or lists of weights in MXNet 2.x. Users' own optimizers implement this in MXNet 1.x."""
        if self.is_v1:
            raise NotImplementedError
        assert all(isinstance(array, NDArray) for array in (*weight, *grad))
        (self.fused_step if self.use_fused_step else self.step)(index, weight, grad, state)

    # -- precision ---------------------------------------------------------------------------------------

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The state for a weight; with `multi_precision`, for a float16 weight, preceded by a copy in float32."""
        if weight.tensor.dtype == torch.float16:
            if self.multi_precision:
                copy = wrap_legacy(weight.tensor.detach().float(), weight.ctx)
                return (copy, self.create_state(index, copy))
            self._warn_about_float16()
        return self.create_state(index, weight)

    def _warn_about_float16(self) -> None:
        warnings.warn(
            "Accumulating with float16 in optimizer can lead to poor accuracy or slow convergence. Consider using "
            "multi_precision=True option of the optimizer",
            stacklevel=3,
        )

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Calls `update`; with `multi_precision`, for float16 weights, with their copies in float32."""
        if not self.multi_precision:
            self.update(index, weight, grad, state)
        elif isinstance(index, list | tuple):
            triples = [self._in_float32(*arrays) for arrays in zip(weight, grad, state, strict=True)]
            self.update(index, *(list(column) for column in zip(*triples, strict=True)))
            for array, (precise, _, _) in zip(weight, triples, strict=True):
                _copy_back(precise, array)
        else:
            precise, precise_grad, inner = self._in_float32(weight, grad, state)
            self.update(index, precise, precise_grad, inner)
            _copy_back(precise, weight)

    def _in_float32(self, weight: Any, grad: Any, state: Any) -> tuple[Any, Any, Any]:
        if weight.tensor.dtype != torch.float16:
            return weight, grad, state
        return state[0], wrap_legacy(grad.tensor.detach().float(), grad.ctx), state[1]

    # -- learning rates and weight decay -------------------------------------------------------------------

    @property
    def learning_rate(self) -> Any:
        """The current learning rate."""
        return self.lr if self.lr_scheduler is None else self.lr_scheduler(self.num_update)

    def set_learning_rate(self, lr: float) -> None:
        """Sets the learning rate; not possible with an `lr_scheduler`."""
        if self.lr_scheduler is not None:
            raise UserWarning(
                "LRScheduler of the optimizer has already been defined. Note that set_learning_rate can mutate the "
                "value of the learning rate of the optimizer only when the LRScheduler of the optimizer is undefined."
            )
        self.lr = lr

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """Sets factors of the learning rate, by the name or the index of parameters."""
        self.lr_mult = dict(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """Sets factors of the weight decay, by the name or the index of parameters."""
        self.wd_mult = dict(args_wd_mult)

    def _set_current_context(self, device_id: int) -> None:
        """Each device counts its own updates."""
        self._index_update_count = self._all_index_update_counts.setdefault(device_id, {})

    _set_current_device = _set_current_context

    def _update_count(self, index: Any) -> None:
        for each in index if isinstance(index, list | tuple) else [index]:
            count = self._index_update_count.get(each, self.begin_num_update) + 1
            self._index_update_count[each] = count
            self.num_update = max(count, self.num_update)

    def _get_lrs(self, indices: Iterable[Any]) -> list[Any]:
        lr = self.learning_rate
        return [lr * self._factor(index, "lr_mult") for index in indices]

    def _get_lr(self, index: Any) -> Any:
        return self._get_lrs([index])[0]

    def _get_wds(self, indices: Iterable[Any]) -> list[Any]:
        return [self.wd * self._factor(index, "wd_mult") for index in indices]

    def _get_wd(self, index: Any) -> Any:
        return self._get_wds([index])[0]

    def _factor(self, index: Any, kind: str) -> float:
        if index in self.param_dict:
            return getattr(self.param_dict[index], kind)  # type: ignore[no-any-return]
        factors = getattr(self, kind)
        return factors.get(index, factors.get(self.idx2name.get(index), 1.0))  # type: ignore[no-any-return]

    def counted(self, index: Any) -> Scales:
        """Counts an update of a parameter, and returns its learning rate, weight decay and number of updates."""
        self._update_count(index)
        return Scales(float(self._get_lr(index)), float(self._get_wd(index)), self._index_update_count[index])

    def on_device(self, device_id: int) -> None:
        """Says on which device the following updates are."""
        self._set_current_context(device_id)

    # -- copies --------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "param_dict"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, param_dict={})  # the Trainer sets it


def _copy_back(precise: Any, array: Any) -> None:
    if precise is not array:
        with torch.no_grad():
            array.tensor.detach().copy_(precise.tensor)


register = Optimizer.register
create = Optimizer.create_optimizer
