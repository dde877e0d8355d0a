"""`mxnet.gluon.ParameterDict` of MXNet 1.x: parameters by their full names."""

from collections.abc import Iterator
from typing import Any

from leafwise_gluon import saved_arrays
from leafwise_gluon.arrays.dtypes import torch_dtype
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.context import Context
from leafwise_gluon.modes import is_np_array, is_np_shape
from leafwise_gluon.parameter.constant import ConstantParameter
from leafwise_gluon.parameter.handle import UNIFORM, Parameter
from leafwise_gluon.text import brief_list

_NAMING = "https://mxnet.io/api/python/docs/tutorials/packages/gluon/blocks/naming.html"


class ParameterDict:
    """Parameters whose names begin with a prefix. Those of `shared` are used before new ones are made.

    >>> from leafwise_gluon.parameter import ParameterDict
    >>> params = ParameterDict("net_")
    >>> params.get("weight", shape=(2, 2)).name
    'net_weight'
    >>> params.get("weight") is params["net_weight"]
    True
    """

    def __init__(self, prefix: str = "", shared: "ParameterDict | None" = None) -> None:
        self._prefix, self._shared = prefix, shared
        self._params: dict[str, Parameter] = {}

    def __repr__(self) -> str:
        name = f"{self._prefix} " if self._prefix else ""
        return f"{name}(\n" + "\n".join(f"  {parameter}" for parameter in self.values()) + "\n)"

    def __getitem__(self, key: str) -> Parameter:
        return self._params[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def items(self) -> Any:
        return self._params.items()

    def keys(self) -> Any:
        return self._params.keys()

    def values(self) -> Any:
        return self._params.values()

    @property
    def prefix(self) -> str:
        return self._prefix

    @property
    def shared(self) -> "ParameterDict | None":
        """Where `get` looks before it makes a new parameter."""
        return self._shared

    def _existing(self, name: str) -> Parameter | None:
        if name not in self._params and self._shared is not None and name in self._shared._params:
            self._params[name] = self._shared._params[name]
        return self._params.get(name)

    def get(self, name: str, **kwargs: Any) -> Parameter:
        """The parameter with the name prefix + name. If there is none, makes one; `kwargs` are its arguments."""
        name = self._prefix + name
        parameter = self._existing(name)
        if parameter is None:
            parameter = self._params[name] = Parameter(name, **kwargs)
            return parameter
        for attribute, wanted in kwargs.items():
            self._reconcile(parameter, attribute, wanted)
        return parameter

    @staticmethod
    def _reconcile(parameter: Parameter, attribute: str, wanted: Any) -> None:
        """Checks an argument of `get` against the parameter that exists, which takes it where it has nothing yet."""
        stored = getattr(parameter, attribute, None)
        if stored is None:
            setattr(parameter, attribute, wanted)
        elif attribute == "shape":
            same = wanted is None or parameter.merge_shape(wanted)
        elif attribute == "dtype":
            same = wanted is None or torch_dtype(wanted) is torch_dtype(stored)
        else:
            same = wanted is None or wanted == stored
        assert stored is None or same, (
            f"Cannot retrieve Parameter '{parameter.name}' because desired attribute does not match with stored for "
            f"attribute '{attribute}': desired '{wanted}' vs stored '{stored}'."
        )

    def get_constant(self, name: str, value: Any = None) -> Parameter:
        """The constant with the name prefix + name. If there is none, makes one with this value."""
        name = self._prefix + name
        parameter = self._existing(name)
        if parameter is None:
            if value is None:
                raise KeyError(
                    f"No constant named '{name}'. Please specify value if you want to create a new constant."
                )
            parameter = self._params[name] = ConstantParameter(name, value)
        elif value is not None:
            assert isinstance(parameter, ConstantParameter), (
                f"Parameter '{name}' already exists but it is not a constant."
            )
            given = value.asnumpy() if isinstance(value, ArrayValues) else value
            same = parameter.shape == given.shape and (parameter.value.asnumpy() == given).all()
            assert same, f"Constant '{name}' already exists but it's value doesn't match new value"
        return parameter

    def update(self, other: Any) -> None:
        """Adds all parameters of another dictionary."""
        for name, parameter in other.items():
            assert self._params.get(name, parameter) is parameter, (
                f"Cannot update self with other because they have different Parameters with the same name '{name}'"
            )
        self._params.update(other.items())

    def replace(self, old: Parameter, new: Parameter) -> None:
        """Puts a parameter in the place of another one."""
        self._params = {
            (new.name if parameter is old else name): (new if parameter is old else parameter)
            for name, parameter in self._params.items()
        }

    # -- all parameters at once ------------------------------------------------------------------------

    def initialize(
        self, init: Any = UNIFORM, ctx: Any = None, verbose: bool = False, force_reinit: bool = False
    ) -> None:
        """Initializes every parameter; one whose shape is not known yet, at the first forward pass."""
        if verbose:
            init.set_verbosity(verbose=verbose)
        for parameter in self.values():
            parameter.initialize(None, ctx, init, force_reinit=force_reinit)

    def zero_grad(self) -> None:
        for parameter in self.values():
            parameter.zero_grad()

    def reset_ctx(self, ctx: Any) -> None:
        for parameter in self.values():
            parameter.reset_device(ctx)

    def list_ctx(self) -> list[Context]:
        """The contexts of all parameters, each once."""
        return list(dict.fromkeys(context for parameter in self.values() for context in parameter.list_device()))

    def setattr(self, name: str, value: Any) -> None:
        """Sets an attribute of every parameter: `net.collect_params().setattr("grad_req", "null")`."""
        for parameter in self.values():
            setattr(parameter, name, value)

    # -- loading ---------------------------------------------------------------------------------------

    def load_dict(
        self,
        param_dict: Any,
        ctx: Any = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        restore_prefix: str = "",
        filename: Any = None,
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Loads values from a dict of arrays, whose names get `restore_prefix` in front of them."""
        source = f"file: {filename}" if filename else "param_dict"
        same_prefix = (
            "Please make sure source and target networks have the same prefix."
            f"For more info on naming, please see {_NAMING}"
        )
        entries = param_dict.items() if isinstance(param_dict, dict) else param_dict
        loaded = {restore_prefix + name.removeprefix("arg:").removeprefix("aux:"): array for name, array in entries}
        for name in self.keys():
            assert allow_missing or name in loaded, (
                f"Parameter '{name[len(restore_prefix) :]}' is missing in {source}, which contains parameters: "
                f"{brief_list(loaded)}. {same_prefix}"
            )
        for name, array in loaded.items():
            assert ignore_extra or name in self._params, (
                f"Parameter '{name[len(restore_prefix) :]}' loaded from {source} is not present in ParameterDict, "
                f"choices are: {brief_list(self._params)}. Set ignore_extra to True to ignore. {same_prefix}"
            )
            if name in self._params:
                self._params[name].check_values(array, ctx, cast_dtype, dtype_source)
        for name, array in loaded.items():  # nothing is changed until everything fits
            if name in self._params:
                self._params[name].load_values(array, ctx, cast_dtype, dtype_source)

    # -- files -----------------------------------------------------------------------------------------

    def save(self, filename: str, strip_prefix: str = "") -> None:
        """Saves the values in MXNet's list format; `strip_prefix` is removed from the names."""
        for name in self.keys():
            if not name.startswith(strip_prefix):
                raise ValueError(
                    f"Prefix '{strip_prefix}' is to be striped before saving, but Parameter's name '{name}' does not "
                    f"start with '{strip_prefix}'. this may be due to your Block shares parameters from other Blocks "
                    "or you forgot to use 'with name_scope()' when creating child blocks. For more info on naming, "
                    f"please see {_NAMING}"
                )
        if is_np_array():
            raise TypeError("cannot save mxnet.numpy.ndarray using mxnet.ndarray.save; use mxnet.numpy.save instead.")
        tensors = {name[len(strip_prefix) :]: parameter.mean() for name, parameter in self.items()}
        saved_arrays.save_list(filename, tensors, numpy_shapes=is_np_shape())

    def load(
        self,
        filename: str,
        ctx: Any = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        restore_prefix: str = "",
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Loads values from a file; the names in it get `restore_prefix` in front of them."""
        for name in self.keys():
            assert name.startswith(restore_prefix), (
                f"restore_prefix is '{restore_prefix}' but Parameters name '{name}' does not start with "
                f"'{restore_prefix}'. For more info on naming, please see {_NAMING}"
            )
        loaded = saved_arrays.load_named(filename)
        self.load_dict(loaded, ctx, allow_missing, ignore_extra, restore_prefix, filename, cast_dtype, dtype_source)
