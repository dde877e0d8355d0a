"""`mxnet.gluon.utils`: batches in parts, the norm of gradients, and files."""

import hashlib
import math
import os
import warnings
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy
import torch

from leafwise_gluon import modes
from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.dtypes import torch_dtype
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import refusal
from leafwise_gluon.context import as_context
from leafwise_gluon.data.conversion import array_by_mode
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.ops.recurrent import Sizes, split_parameters
from leafwise_gluon.text import brief_list, indented


def split_data(data: Any, num_slice: int, batch_axis: int = 0, even_split: bool = True) -> list[Any]:
    """An array in `num_slice` parts along the batch axis.

    >>> from leafwise_gluon import np, utils
    >>> [part.shape for part in utils.split_data(np.zeros((5, 2)), 2, even_split=False)]
    [(3, 2), (2, 2)]
    """
    size = data.shape[batch_axis]
    if even_split and size % num_slice:
        raise ValueError(
            f"data with shape {tuple(data.shape)} cannot be evenly split into {num_slice} slices along axis "
            f"{batch_axis}. Use a batch size that's multiple of {num_slice} or set even_split=False to allow uneven "
            "partitioning of data."
        )
    each, extra = divmod(size, num_slice)
    ends = accumulate([each + 1] * extra + [each] * (num_slice - extra), initial=0)
    # Outside NumPy mode, MXNet 1.x gives views of the rows.
    views = is_v1() and not modes.is_np_array() and batch_axis == 0
    tensor = plain(data)
    parts = [tensor.narrow(batch_axis, start, end - start) for start, end in pairwise(ends)]
    return [wrap_like(data, part if views else part.clone()) for part in parts]


def split_and_load(data: Any, ctx_list: Sequence[Any], batch_axis: int = 0, even_split: bool = True) -> list[Any]:
    """A batch in one part for each context. Contexts on one device share its memory.

    >>> from leafwise_gluon import np, utils
    >>> from leafwise_gluon.context import cpu
    >>> [part.tolist() for part in utils.split_and_load(np.arange(4), [cpu(0), cpu(1)])]
    [[0.0, 1.0], [2.0, 3.0]]
    """
    if not isinstance(data, ArrayValues):
        data = array_by_mode(data, dtype=torch_dtype(None), ctx=as_context(ctx_list[0]))
    if len(ctx_list) == 1:
        return [data.as_in_context(ctx_list[0])]
    parts = split_data(data, len(ctx_list), batch_axis, even_split)
    return [part.as_in_context(context) for part, context in zip(parts, ctx_list, strict=True)]


def clip_global_norm(arrays: Sequence[Any], max_norm: float, check_isfinite: bool = True) -> Any:
    """Scales arrays in place so that the norm of all of them together is at most `max_norm`. Returns the norm.

    >>> from leafwise_gluon import np, utils
    >>> x = np.array([3, 4])
    >>> utils.clip_global_norm([x], 1.0), x
    (5.0, array([0.6, 0.8]))
    """
    assert len(arrays) > 0
    with torch.no_grad():
        squares = [plain(array).reshape(-1).square().sum().to("cpu", torch.float32) for array in arrays]
    norm = numpy.sqrt(numpy.float32(sum(square.item() for square in squares)))
    total = float(norm)
    if check_isfinite and not math.isfinite(total):
        warnings.warn("nan or inf is detected. Clipping results will be undefined.", UserWarning, stacklevel=2)
    with numpy.errstate(invalid="ignore"):
        scale = float(numpy.minimum(numpy.float32(max_norm) / (norm + numpy.float32(1e-8)), numpy.float32(1)))
    for array in arrays:
        array *= scale
    if not check_isfinite:
        return wrap_like(arrays[0], torch.tensor([total], device=plain(arrays[0]).device))
    return norm if is_v1() else total


def check_sha1(filename: str, sha1_hash: str) -> bool:
    """Whether a file has this SHA-1."""
    with open(filename, "rb") as file:
        return hashlib.file_digest(file, "sha1").hexdigest() == sha1_hash


def replace_file(src: str, dst: str) -> None:
    """Gives a file another name, and replaces what has that name."""
    os.replace(src, dst)


def download(
    url: str,
    path: str | None = None,
    overwrite: bool = False,
    sha1_hash: str | None = None,
    retries: int = 5,
    verify_ssl: bool = True,
) -> str:
    """The path of a file that has been downloaded before. Raises an error if it does not exist or has another SHA-1:
    the front end does not download."""
    name = url.split("/")[-1]
    target = name if path is None else os.path.join(os.path.expanduser(path), name) if os.path.isdir(path) else path
    target = os.path.expanduser(target)
    if not overwrite and os.path.exists(target) and (sha1_hash is None or check_sha1(target, sha1_hash)):
        return target
    raise refusal(f"the download of {url}", f"download it yourself to {target!r}")


def repo_url() -> str:
    """The address of MXNet's files. Libraries read it when they are imported."""
    url = os.environ.get("MXNET_GLUON_REPO", "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/")
    return url if url.endswith("/") else f"{url}/"


def repo_file_url(namespace: str, filename: str) -> str:
    """The address of one of MXNet's files."""
    return f"{repo_url()}{namespace}/{filename}"


def split_rnn_params(
    param: Any,
    mode: str,
    num_layers: int,
    input_size: int,
    hidden_size: int,
    bidirectional: bool = False,
    projection_size: int | None = None,
) -> dict[str, Any]:
    """Copies of the weights and biases in the one flat parameter of a recurrent layer of MXNet 2.x, by name.

    >>> from leafwise_gluon import np, rnn, utils
    >>> layer = rnn.LSTM(4)
    >>> layer.initialize()
    >>> outputs = layer(np.ones((5, 1, 3)))
    >>> parts = utils.split_rnn_params(layer.rnn_param.data(), "lstm", 1, 3, 4)
    >>> {name: part.shape for name, part in parts.items()}
    {'l0_i2h_weight': (16, 3), 'l0_h2h_weight': (16, 4), 'l0_i2h_bias': (16,), 'l0_h2h_bias': (16,)}
    """
    sizes = Sizes(mode, input_size, hidden_size, num_layers, 2 if bidirectional else 1, projection_size or None)
    return {name: wrap_like(param, part.clone()) for name, part in split_parameters(plain(param), sizes).items()}


def shape_is_known(shape: Sequence[int] | None) -> bool:
    """Whether a shape has no unknown dimension: -1, or 0 outside NumPy mode."""
    if shape is None:
        return False
    unknown = -1 if modes.is_np_shape() else 0
    if not len(shape):
        return unknown == -1
    for size in shape:
        if size == unknown:
            return False
        assert size > unknown, f"shape dimension size cannot be less than {unknown}, while received {size}"
    return True


# Private in MXNet, but imported by libraries.
_indent, _brief_print_list = indented, brief_list
_get_repo_url, _get_repo_file_url = repo_url, repo_file_url
