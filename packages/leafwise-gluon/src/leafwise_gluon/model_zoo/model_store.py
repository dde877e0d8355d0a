"""Files with the weights of the model zoo, which MXNet downloads. Here they must already be on this machine."""

import os
import re

from leafwise_gluon.base import refusal

_ROOT = os.path.join("~", ".mxnet", "models")
__all__ = ["get_model_file", "purge"]


def get_model_file(name: str, root: str = _ROOT) -> str:
    """The path of a file with the weights of a network, as MXNet has named it: `resnet18_v1-a0666292.params`."""
    folder = os.path.expanduser(root)
    named = re.compile(rf"{re.escape(name)}-[0-9a-f]{{8}}\.params")
    files = sorted(file for file in (os.listdir(folder) if os.path.isdir(folder) else ()) if named.fullmatch(file))
    if not files:
        raise refusal(
            f"downloading the weights of {name}",
            f"put {name}-XXXXXXXX.params, as MXNet has named it, into {folder}, or call net.load_parameters(path)",
        )
    if len(files) > 1:
        raise refusal(f"choosing between {' and '.join(files)}", f"leave one of them in {folder}")
    return os.path.join(folder, files[0])


def purge(root: str = _ROOT) -> None:
    """Removes nothing: MXNet deletes every .params file in this folder."""
    raise refusal("model_store.purge", f"delete the files in {os.path.expanduser(root)} yourself")
