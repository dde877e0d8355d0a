"""`nd.sgd_update`, `nd.adam_update` and others: one step of an optimizer, for optimizers that users write themselves.

Each returns the new weight, or writes it to `out`, which is usually the weight itself; the arrays of the state are
changed in place.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.legacy_calls import exposed
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops import weight_updates

__all__ = [
    "adam_update",
    "ftml_update",
    "ftrl_update",
    "lamb_update_phase1",
    "lamb_update_phase2",
    "mp_nag_mom_update",
    "mp_sgd_mom_update",
    "mp_sgd_update",
    "multi_sgd_mom_update",
    "multi_sgd_update",
    "nag_mom_update",
    "rmsprop_update",
    "rmspropalex_update",
    "sgd_mom_update",
    "sgd_update",
    "signsgd_update",
    "signum_update",
]

_Formula = Callable[..., torch.Tensor]
# Names of arguments in MXNet 1.x → in 2.x, for RMSProp.
_SINCE_2 = {"gamma1": "rho", "gamma2": "momentum"}
_RMS = ("rmsprop_update", "rmspropalex_update")


def _update(name: str, formula: _Formula, states: int) -> Callable[..., Any]:
    """A function of NDArrays: the weight, the gradient, `states` arrays of the state, and numbers by keyword."""

    def compute(*args: Any, lazy_update: bool = True, **numbers: Any) -> torch.Tensor:
        _check(name, args[: states + 2])
        renamed = {_name_here(name, formula, key): value for key, value in numbers.items()}
        with torch.no_grad():
            return formula(*(_detached(arg) for arg in args), **renamed)

    compute.__doc__ = f"One step of the optimizer of {name}; its arguments are those of MXNet."
    return exposed(compute, name)


def _name_here(name: str, formula: _Formula, key: str) -> str:
    here = _SINCE_2.get(key, key) if dialect.is_v1() else key
    if here not in inspect.signature(formula).parameters or (dialect.is_v1() and name in _RMS and here == key == "rho"):
        raise MXNetError(f"nd.{name} has no argument {key!r} in MXNet {dialect.version()}.x")
    return here


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _check(name: str, arrays: tuple[Any, ...]) -> None:
    shapes = [tuple(array.shape) for array in arrays if isinstance(array, torch.Tensor)]
    dtypes = {array.dtype for array in arrays if isinstance(array, torch.Tensor)}
    if len(set(shapes)) > 1 or len(dtypes) > 1:
        raise MXNetError(f"nd.{name} needs arrays of one shape and dtype, not {shapes} and {sorted(map(str, dtypes))}")


def _in_float32(formula: _Formula) -> _Formula:
    """A formula for weights in float16 with a copy in float32, which is the last array."""

    @functools.wraps(formula)
    def compute(weight: torch.Tensor, grad: torch.Tensor, *rest: torch.Tensor, **numbers: Any) -> torch.Tensor:
        precise: torch.Tensor
        *states, precise = (_detached(array) for array in rest)
        numbers.pop("lazy_update", None)
        with torch.no_grad():
            precise.copy_(formula(precise, grad.detach().float(), *states, **numbers))
            return precise.to(weight.dtype)

    return compute


def _together(formula: _Formula, states: int) -> Callable[..., list[torch.Tensor]]:
    """A formula for several weights: weight, gradient and state of the first, of the second, and so on."""

    def compute(*arrays: torch.Tensor, lrs: Any, wds: Any, num_weights: int = 1, **numbers: Any) -> list[torch.Tensor]:
        size = 2 + states
        if not len(arrays) == size * num_weights == size * len(lrs) == size * len(wds):
            raise MXNetError(f"{formula.__name__}: {len(arrays)} arrays do not fit num_weights={num_weights}")
        with torch.no_grad():
            groups = [
                [array.detach() for array in arrays[start : start + size]] for start in range(0, len(arrays), size)
            ]
            return [formula(*group, lr=lr, wd=wd, **numbers) for group, lr, wd in zip(groups, lrs, wds, strict=True)]

    return compute


sgd_update = _update("sgd_update", weight_updates.sgd, 0)
sgd_mom_update = _update("sgd_mom_update", weight_updates.sgd_mom, 1)
adam_update = _update("adam_update", weight_updates.adam, 2)
rmsprop_update = _update("rmsprop_update", weight_updates.rmsprop, 1)
rmspropalex_update = _update("rmspropalex_update", weight_updates.rmspropalex, 3)
ftrl_update = _update("ftrl_update", weight_updates.ftrl, 2)
signsgd_update = _update("signsgd_update", weight_updates.signsgd, 0)
signum_update = _update("signum_update", weight_updates.signum, 1)
lamb_update_phase2 = _update("lamb_update_phase2", weight_updates.lamb_phase2, 0)
multi_sgd_update = exposed(_together(weight_updates.sgd, 0), "multi_sgd_update")
multi_sgd_mom_update = exposed(_together(weight_updates.sgd_mom, 1), "multi_sgd_mom_update")
mp_sgd_update = exposed(_in_float32(weight_updates.sgd), "mp_sgd_update")
mp_sgd_mom_update = exposed(_in_float32(weight_updates.sgd_mom), "mp_sgd_mom_update")
mp_nag_mom_update = exposed(_in_float32(weight_updates.nag_mom), "mp_nag_mom_update")
_nag_mom_update = _update("nag_mom_update", weight_updates.nag_mom, 1)
_ftml_update = _update("ftml_update", weight_updates.ftml, 3)
_lamb_update_phase1 = _update("lamb_update_phase1", weight_updates.lamb_phase1, 2)


def nag_mom_update(weight: Any, *args: Any, out: Any = None, wd: float = 0.0, **numbers: Any) -> Any:
    """One step of SGD with Nesterov's momentum."""
    if dialect.is_v1() and wd and out is not weight:
        raise refusal("nd.nag_mom_update with wd, and another out than the weight, in MXNet 1.x", "use out=weight")
    return _nag_mom_update(weight, *args, out=out, wd=wd, **numbers)


def ftml_update(weight: Any, grad: Any, d: Any, v: Any, z: Any, *, t: int, **numbers: Any) -> Any:
    """One step of FTML; `t` is the number of steps, this one included."""
    return _ftml_update(weight, grad, d, v, z, t=t, **numbers)


def lamb_update_phase1(weight: Any, grad: Any, mean: Any, var: Any, *, t: int, **numbers: Any) -> Any:
    """The direction of a step of LAMB; `t` is the number of steps, this one included."""
    return _lamb_update_phase1(weight, grad, mean, var, t=t, **numbers)
