"""`mxnet.npx`: the functions of MXNet that NumPy does not have, over the arrays of `np`."""

from leafwise_gluon.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from leafwise_gluon.modes import (
    is_np_array,
    is_np_default_dtype,
    is_np_shape,
    reset_np,
    set_np,
    set_np_shape,
    use_np,
    use_np_array,
    use_np_shape,
)
from leafwise_gluon.names.lookup import names_of
from leafwise_gluon.npx import random
from leafwise_gluon.npx.control_flow import *  # noqa: F403
from leafwise_gluon.npx.control_flow import __all__ as _control_flow
from leafwise_gluon.npx.conversions import *  # noqa: F403
from leafwise_gluon.npx.conversions import __all__ as _conversions
from leafwise_gluon.npx.neural import *  # noqa: F403
from leafwise_gluon.npx.neural import __all__ as _neural
from leafwise_gluon.npx.random import seed
from leafwise_gluon.npx.recurrent import rnn
from leafwise_gluon.npx.saving import load, save, savez

Device = Context
current_device = current_context

__all__ = [
    *_control_flow,
    *_conversions,
    *_neural,
    "Context",
    "Device",
    "cpu",
    "cpu_pinned",
    "current_context",
    "current_device",
    "gpu",
    "is_np_array",
    "is_np_default_dtype",
    "is_np_shape",
    "load",
    "num_gpus",
    "random",
    "reset_np",
    "rnn",
    "save",
    "savez",
    "seed",
    "set_np",
    "set_np_shape",
    "use_np",
    "use_np_array",
    "use_np_shape",
]

__getattr__ = names_of("mxnet.numpy_extension")
