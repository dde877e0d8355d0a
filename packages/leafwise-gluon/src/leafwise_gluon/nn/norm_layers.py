"""Normalization layers."""

import uuid
import warnings
from typing import Any

import numpy
import torch

from leafwise.core.roles.role_table import add_roles
from leafwise_gluon.arrays.autograd_state import STATE
from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.block import HybridBlock
from leafwise_gluon.ops import neural_norms


class NormLayer(HybridBlock):
    """What normalization layers have in common: gamma and beta for each channel, and a text of their arguments."""

    _kwargs: dict[str, Any]

    def _make_scale(self, name: str, size: int, init: Any, learned: bool, **facts: Any) -> Any:
        """gamma or beta. If it is not learned, it has no gradient."""
        grad_req = "write" if learned else "null"
        return self.own_parameter(name, grad_req=grad_req, shape=(size,), init=init, allow_deferred_init=True, **facts)

    def _channel_axis(self, x: Any) -> int:
        return 1

    def infer_shape(self, x: Any) -> None:
        size = x.shape[self._channel_axis(x)]
        for parameter in self.params.values():
            parameter.shape = (size,)

    def _tensors(self, x: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.finish_deferred_init(x)
        gamma, beta = self.tensor_for("gamma", x), self.tensor_for("beta", x)
        assert gamma is not None
        assert beta is not None
        return gamma, beta

    def _content(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._kwargs.items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._content()}, in_channels={self.gamma.shape[0]})"


class BatchNorm(NormLayer):
    """Batch normalization. As in MXNet, the backward pass updates the running statistics.

    >>> from leafwise_gluon import autograd, nn, np
    >>> layer = nn.BatchNorm()
    >>> layer.initialize()
    >>> with autograd.record():
    ...     y = layer(np.array([[1, 2], [3, 6]]))
    >>> y.backward()
    >>> layer.running_mean.data()
    array([0.2, 0.4])
    """

    _has_relu = False

    def __init__(
        self,
        axis: int = 1,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        use_global_stats: bool = False,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        running_mean_initializer: Any = "zeros",
        running_variance_initializer: Any = "ones",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._kwargs = {
            "axis": axis,
            "eps": epsilon,
            "momentum": momentum,
            "fix_gamma": not scale,
            "use_global_stats": use_global_stats,
        }
        self._axis = axis
        if in_channels:
            self.in_channels = in_channels
        self.gamma = self._make_scale("gamma", in_channels, gamma_initializer, scale, differentiable=scale)
        self.beta = self._make_scale("beta", in_channels, beta_initializer, center, differentiable=center)
        self.running_mean = self._make_scale(
            "running_mean", in_channels, running_mean_initializer, False, differentiable=False
        )
        self.running_var = self._make_scale(
            "running_var", in_channels, running_variance_initializer, False, differentiable=False
        )

    def cast(self, dtype: Any) -> None:
        """Converts the parameters; for float16 they stay in float32."""
        super().cast("float32" if numpy.dtype(dtype).name == "float16" else dtype)

    def _channel_axis(self, x: Any) -> int:
        return self._axis

    def forward(self, x: Any) -> Any:
        gamma, beta = self._tensors(x)
        mean, var = self.tensor_for("running_mean", x), self.tensor_for("running_var", x)
        assert mean is not None
        assert var is not None
        is_array = isinstance(x, ArrayValues)
        facts = self._kwargs
        result = neural_norms.batch_norm(
            plain(x),
            gamma,
            beta,
            mean,
            var,
            facts["eps"],
            facts["momentum"],
            facts["fix_gamma"],
            facts["use_global_stats"],
            axis=self._axis,
            training=STATE.training if is_array else self.training,
            updates_in_forward=not is_array,
        )
        return wrap_like(x, torch.relu(result) if self._has_relu else result)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._content()}, in_channels={self.gamma.shape[0] or None})"


class BatchNormReLU(BatchNorm):
    """Batch normalization, followed by relu."""

    _has_relu = True


class SyncBatchNorm(BatchNorm):
    """Batch normalization; there is one device, so nothing has to be synchronized."""

    def __init__(
        self,
        in_channels: int = 0,
        num_devices: int | None = None,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        use_global_stats: bool = False,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        running_mean_initializer: Any = "zeros",
        running_variance_initializer: Any = "ones",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            1,
            momentum,
            epsilon,
            center,
            scale,
            use_global_stats,
            beta_initializer,
            gamma_initializer,
            running_mean_initializer,
            running_variance_initializer,
            in_channels,
            **kwargs,
        )
        if num_devices is None:
            warnings.warn(
                "Caution using SyncBatchNorm: if not using all the GPUs, please mannually set num_devices",
                UserWarning,
                stacklevel=2,
            )
        del self._kwargs["axis"]
        self._kwargs.update(ndev=num_devices or 1, key=uuid.uuid4())


class LayerNorm(NormLayer):
    """Normalizes along one axis, by default the last."""

    def __init__(
        self,
        axis: int = -1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._kwargs = {"eps": epsilon, "axis": axis, "center": center, "scale": scale}
        self._axis, self._epsilon, self._center, self._scale = axis, epsilon, center, scale
        self.gamma = self._make_scale("gamma", in_channels, gamma_initializer, scale)
        self.beta = self._make_scale("beta", in_channels, beta_initializer, center)

    def _channel_axis(self, x: Any) -> int:
        return self._axis

    def forward(self, data: Any) -> Any:
        return wrap_like(data, neural_norms.layer_norm(plain(data), *self._tensors(data), self._axis, self._epsilon))


class GroupNorm(NormLayer):
    """Normalizes groups of channels. In MXNet 1.x, gamma and beta have one element for each group."""

    def __init__(
        self,
        num_groups: int = 1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._kwargs = {"eps": epsilon, "num_groups": num_groups, "center": center, "scale": scale}
        self._num_groups, self._epsilon, self._center, self._scale = num_groups, epsilon, center, scale
        size = in_channels if self._scope is None else num_groups
        self.gamma = self._make_scale("gamma", size, gamma_initializer, scale)
        self.beta = self._make_scale("beta", size, beta_initializer, center)

    def infer_shape(self, x: Any) -> None:
        if self._scope is None:
            super().infer_shape(x)

    def forward(self, data: Any) -> Any:
        tensors = self._tensors(data)
        return wrap_like(data, neural_norms.group_norm(plain(data), *tensors, self._num_groups, self._epsilon))

    def __repr__(self) -> str:
        return super().__repr__() if self._scope is None else f"{type(self).__name__}({self._content()})"


class InstanceNorm(NormLayer):
    """Normalizes each channel of each example."""

    def __init__(
        self,
        axis: int = 1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = False,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._kwargs = {"eps": epsilon, "axis": axis, "center": center, "scale": scale}
        self._axis, self._epsilon = axis, epsilon
        self.gamma = self._make_scale("gamma", in_channels, gamma_initializer, scale)
        self.beta = self._make_scale("beta", in_channels, beta_initializer, center)

    def _channel_axis(self, x: Any) -> int:
        return 1 if self._scope is None else self._axis

    def forward(self, x: Any) -> Any:
        data = plain(x).transpose(1, self._axis)
        result = neural_norms.instance_norm(data, *self._tensors(x), self._epsilon)
        return wrap_like(x, result.transpose(1, self._axis).contiguous())


_ROLES = {
    "gamma": ("norm.scale", ("features",)),
    "beta": ("norm.bias", ("features",)),
    "running_mean": ("norm.mean", ("features",)),
    "running_var": ("norm.variance", ("features",)),
}
add_roles(NormLayer, _ROLES)
