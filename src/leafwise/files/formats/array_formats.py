"""The formats of files that contain nothing but arrays, which `leafwise convert` and `lw.edit` can write."""

from types import ModuleType

from leafwise.files.formats import mxnet_writer, npz_writer

ARRAY_FORMATS: dict[str, ModuleType] = {"npz": npz_writer, "MXNet params": mxnet_writer}
_BY_SUFFIX = {".npz": "npz", ".params": "MXNet params"}


def format_by_name(path: str) -> str | None:
    """The format that the name of a file asks for; None if it is none of these."""
    return next((name for suffix, name in _BY_SUFFIX.items() if path.lower().endswith(suffix)), None)
