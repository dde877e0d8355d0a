"""`mxnet.gluon.Trainer`: applies an optimizer to parameters."""

from typing import Any

import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.legacy import wrap_legacy
from leafwise_gluon.base import refusal
from leafwise_gluon.optimizer import Optimizer, Updater, create, get_updater
from leafwise_gluon.optimizer.state_files import load_states, save_states
from leafwise_gluon.parameter import Parameter, ParameterDict

__all__ = ["Trainer"]

_ON_ONE_MACHINE = ("local", "device", "nccl", "local_update_cpu", "local_allreduce_cpu", "local_allreduce_device")
# MXNet's limit above which a "local" store does not update parameters itself.
_LARGE = 16 * 1024 * 1024


class LocalStore:
    """What a KVStore does on one machine: it adds up gradients, and may update the parameters itself."""

    def __init__(self, kind: str) -> None:
        self.type = kind
        self.rank, self.num_workers = 0, 1
        self._updater: Updater | None = None

    def set_optimizer(self, optimizer: Optimizer) -> None:
        self._updater = get_updater(optimizer)

    def update(self, index: int, gradient: Any, parameter: Parameter) -> None:
        """Updates the first of a parameter's values, and copies it to the others."""
        assert self._updater is not None
        first, *others = parameter.list_data()
        self._updater(index, gradient, first)
        with torch.no_grad():
            for array in others:
                array.tensor.detach().copy_(first.tensor)


class Trainer:
    """Applies an optimizer to parameters; `step(batch_size)` divides the gradients by the batch size.

    >>> from leafwise_gluon import Trainer, autograd, nn, np
    >>> net = nn.Dense(1, in_units=2)
    >>> net.initialize(init="ones")
    >>> trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    >>> with autograd.record():
    ...     loss = net(np.array([[1, 2]])).sum()
    >>> loss.backward()
    >>> trainer.step(batch_size=1)
    >>> net.weight.data()
    array([[0.5, 0. ]])

    With parameters on several contexts, the gradients are added up. `kvstore` matters only then.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        kvstore: Any = "device",
        compression_params: Any = None,
        update_on_kvstore: bool | None = None,
    ) -> None:
        self._params = _listed(params)
        if kvstore is not None and (not isinstance(kvstore, str) or kvstore not in _ON_ONE_MACHINE):
            raise refusal(f"Trainer(kvstore={kvstore!r})", "use 'device': training is on one machine")
        self._contexts = self._common_contexts()
        if compression_params and len(self._contexts) > 1:
            raise refusal("Trainer(compression_params=...) on several contexts", "leave it out")
        self._init_optimizer(optimizer, optimizer_params or {})
        self._scale = self._optimizer.rescale_grad
        if not dialect.is_v1() and self._optimizer.aggregate_num > 1:
            if update_on_kvstore:
                raise ValueError("Cannot set update_on_kvstore=True when optimizer.aggregate_num > 1.")
            update_on_kvstore = False
        self._kvstore_params: dict[str, Any] = {"kvstore": kvstore, "update_on_kvstore": update_on_kvstore}
        self._reset_kvstore()

    def _common_contexts(self) -> list[Any]:
        contexts = None
        word = "contexts" if dialect.is_v1() else "devices"
        for param in self._params:
            own = param.list_device()
            assert contexts is None or contexts == own, (
                f"All Parameters must be initialized on the same set of {word}, but Parameter {param.name} is "
                f"initialized on {own} while previous Parameters are initialized on {contexts}."
            )
            contexts = own
        return contexts or []

    def _init_optimizer(self, optimizer: Any, optimizer_params: dict[str, Any]) -> None:
        param_dict = dict(enumerate(self._params))
        if isinstance(optimizer, Optimizer):
            assert not optimizer_params, (
                "optimizer_params must be None if optimizer is an instance of Optimizer instead of str"
            )
            self._optimizer = optimizer
            self._optimizer.param_dict = param_dict
        else:
            self._optimizer = create(optimizer, param_dict=param_dict, **optimizer_params)
        self._updaters = [get_updater(self._optimizer) for _ in self._contexts]

    # -- several contexts --------------------------------------------------------------------------------

    def _reset_kvstore(self) -> None:
        self._kv_initialized = False
        self._kvstore: LocalStore | None = None
        self._update_on_kvstore: bool | None = None

    def _ensure_kvstore(self) -> None:
        """As in MXNet, a store that updates the parameters begins anew, without states, once one was set."""
        if self._update_on_kvstore and self._times_set != self._count_times_set():
            self._reset_kvstore()
        if not self._kv_initialized:
            self._init_kvstore()

    def _count_times_set(self) -> int:
        return sum(param.times_set for param in self._params)

    def _init_kvstore(self) -> None:
        """Decides where parameters are updated: without a store on one context, as MXNet does on several."""
        for param in self._params:
            param.check_initialized()
        kind = self._kvstore_params["kvstore"]
        if kind is not None and len(self._contexts) > 1:
            self._kvstore = LocalStore(kind)
            asked = self._kvstore_params["update_on_kvstore"]
            is_large = kind == "local" and max(param.tensor.numel() for param in self._params) > _LARGE
            self._update_on_kvstore = not is_large if asked is None else asked
            if self._update_on_kvstore:
                self._kvstore.set_optimizer(self._optimizer)
            for param in self._params:
                with torch.no_grad():
                    for tensor in param.tensors[1:]:
                        tensor.copy_(param.tensor)
        self._kv_initialized = True
        self._times_set = self._count_times_set()

    def _check_store(self, method: str) -> None:
        self._ensure_kvstore()
        assert not self._update_on_kvstore, (
            f"{method}() when parameters are updated on kvstore is not supported. Try setting `update_on_kvstore` to "
            "False when creating trainer."
        )

    def _allreduce_grads(self) -> None:
        if self._kvstore is None:
            return
        for index, param in enumerate(self._params):
            if param.grad_req == "null":
                continue
            gradients = [array.tensor for array in param.list_grad()]
            total = torch.stack([gradient.to(gradients[0].device) for gradient in gradients]).sum(dim=0)
            if self._update_on_kvstore:
                self._kvstore.update(index, wrap_legacy(total), param)
            else:
                for gradient in gradients:
                    gradient.copy_(total)

    # -- steps ---------------------------------------------------------------------------------------------

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Updates the parameters with their gradients, divided by the batch size.

        If a parameter got no gradient from backward since the last step, a UserWarning is raised as an error; with
        `ignore_stale_grad`, such parameters stay as they are.
        """
        self._optimizer.rescale_grad = self._scale / batch_size
        self._ensure_kvstore()
        self._allreduce_grads()
        self._update(ignore_stale_grad)

    def allreduce_grads(self) -> None:
        """Adds up the gradients of several contexts, for use before `update`."""
        self._check_store("allreduce_grads")
        self._allreduce_grads()

    def update(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Like `step`, but without adding up the gradients of several contexts."""
        self._check_store("update")
        self._optimizer.rescale_grad = self._scale / batch_size
        self._update(ignore_stale_grad)

    def _update(self, ignore_stale_grad: bool) -> None:
        updates: list[list[Any]] = [[] for _ in self._updaters]
        for index, param in enumerate(self._params):
            if param.grad_req == "null":
                continue
            tensors = param.tensors
            if not ignore_stale_grad:
                for tensor, context in zip(tensors, self._contexts, strict=True):
                    if not _is_fresh(tensor):
                        raise UserWarning(_stale(param.name, context))
            if self._update_on_kvstore:
                continue
            for rows, tensor, array, grad in zip(updates, tensors, param.list_data(), param.list_grad(), strict=True):
                if _is_fresh(tensor):
                    rows.append((index, grad, array))
                    tensor.is_fresh = False
        for updater, rows in zip(self._updaters, updates, strict=True):
            if rows:
                updater(*(list(column) for column in zip(*rows, strict=True)))

    # -- learning rate and states ----------------------------------------------------------------------------

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer."""
        return self._optimizer

    @property
    def learning_rate(self) -> Any:
        """The current learning rate."""
        return self._optimizer.learning_rate

    def set_learning_rate(self, lr: float) -> None:
        """Sets the learning rate; not possible with an `lr_scheduler`."""
        self._optimizer.set_learning_rate(lr)

    def save_states(self, fname: Any) -> None:
        """Writes the states of the optimizer, such as momenta, and its numbers, such as the learning rate, to a file.

        It is a safetensors file, not the pickle that MXNet writes; MXNet cannot read it.
        """
        self._ensure_kvstore()
        save_states(fname, self._state_keepers()[0].states, self._optimizer)

    def load_states(self, fname: Any) -> None:
        """Reads a file that `save_states` has written. Files of MXNet's Trainer are pickles, and are refused."""
        self._ensure_kvstore()
        states = load_states(fname, self._optimizer)
        for updater, context in zip(self._state_keepers(), self._contexts, strict=False):
            updater.states = {index: _copied(state, context) for index, state in states.items()}
            updater.states_synced = dict.fromkeys(states, True)
        self._optimizer.param_dict = dict(enumerate(self._params))

    def _state_keepers(self) -> list[Updater]:
        if self._update_on_kvstore:
            assert self._kvstore is not None
            assert self._kvstore._updater is not None
            return [self._kvstore._updater]
        return self._updaters


def _listed(params: Any) -> list[Parameter]:
    """The parameters, by sorted names if they have names; in MXNet 2.x, each once."""
    if isinstance(params, dict | ParameterDict):
        params = [params[name] for name in sorted(params.keys())]
    message = "First argument must be a list or dict of Parameters, got "
    if not isinstance(params, list | tuple):
        raise ValueError(f"{message}{type(params)}.")
    listed: list[Parameter] = []
    for param in params:
        if not isinstance(param, Parameter):
            raise ValueError(f"{message}list of {type(param)}.")
        if dialect.is_v1() or not any(param is other for other in listed):
            listed.append(param)
    return listed


def _is_fresh(tensor: Any) -> bool:
    """Whether backward has computed a gradient since the last step."""
    return tensor.grad is not None and getattr(tensor, "is_fresh", False)


def _stale(name: str, context: Any) -> str:
    word = "context" if dialect.is_v1() else "device"
    return (
        f"Gradient of Parameter `{name}` on {word} {context} has not been updated by backward since last `step`. This "
        "could mean a bug in your model that made it only use a subset of the Parameters (Blocks) for this iteration. "
        "If you are intentionally only using a subset, call step with ignore_stale_grad=True to suppress this warning "
        "and skip updating of Parameters with stale gradient"
    )


def _copied(state: Any, context: Any) -> Any:
    if isinstance(state, list | tuple):
        return type(state)(_copied(item, context) for item in state)
    if not hasattr(state, "tensor"):
        return state
    return wrap_legacy(state.tensor.detach().to(context.torch_device, copy=True), context)
