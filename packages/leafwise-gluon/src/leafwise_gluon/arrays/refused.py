"""What to write instead of a name that arrays do not have, such as one of `torch.Tensor`."""

import torch

_INSTEAD = {
    "amax": "use x.max(axis)",
    "amin": "use x.min(axis)",
    "clamp": "use x.clip(min, max)",
    "clone": "use x.copy()",
    "dim": "use x.ndim",
    "eq": "use ==",
    "equal": "use np.array_equal(x, y)",
    "expand": "use x.broadcast_to(shape)",
    "expand_dims": "use np.expand_dims(x, axis)",
    "asscalar": "use x.item()",
    "float": "use x.astype('float32')",
    "gather": "use x.take(indices, axis)",
    "int": "use x.astype('int32')",
    "long": "use x.astype('int64')",
    "matmul": "use x @ y",
    "mm": "use x @ y",
    "numpy": "use x.asnumpy()",
    "permute": "use x.transpose(axes)",
    "pow": "use x ** y",
    "requires_grad_": "use x.attach_grad()",
    "t": "use x.T",
    "to": "use x.astype(dtype) or x.to_device(device)",
    "unsqueeze": "use np.expand_dims(x, axis)",
    "view": "use x.reshape(shape), which copies, or x.reshape_view(shape)",
    "zero_": "use x[:] = 0",
}


def refusal_of(name: str) -> str:
    from leafwise_gluon import np

    use = _INSTEAD.get(name, f"use np.{name}(x)" if name in vars(np) else "")
    if not use:
        is_torch = hasattr(torch.Tensor, name)
        use = f"use x.tensor.{name} for PyTorch's" if is_torch else "x.tensor is the underlying torch.Tensor"
    return f"the Gluon front end has no ndarray.{name}; {use}"
