"""Which PyTorch calls are operations on the values of a parameter."""

from typing import Any

# These are about the tensor itself, not about its values.
_ABOUT_ITSELF = frozenset(
    [
        "__deepcopy__",
        "__delete__",
        "__dir__",
        "__format__",
        "__hash__",
        "__len__",
        "__reduce__",
        "__reduce_ex__",
        "__repr__",
        "__set__",
        "__setstate__",
        "_is_view",
        "_typed_storage",
        "backward",
        "data_ptr",
        "detach",
        "dim",
        "element_size",
        "get_device",
        "grad",
        "is_complex",
        "is_contiguous",
        "is_floating_point",
        "is_same_size",
        "is_set_to",
        "is_shared",
        "numel",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "requires_grad_",
        "resize_",
        "retain_grad",
        "set_",
        "share_memory_",
        "size",
        "storage",
        "storage_offset",
        "stride",
        "type",
        "untyped_storage",
    ]
)

# Properties that compute from the values, like operations.
_COMPUTED = frozenset({"T", "mT", "H", "mH", "real", "imag"})


def operation_name(func: Any) -> str | None:
    """The name of an intercepted call in a `Use`; None if the call is only about the tensor itself."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", name)
        return name if name in _COMPUTED else None
    return None if name in _ABOUT_ITSELF else name
