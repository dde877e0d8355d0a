"""`mxnet.util`: environment variables, and where data is kept."""

import os

import torch


def getenv(name: str) -> str | None:
    """An environment variable, or None."""
    return os.environ.get(name)


def setenv(name: str, value: str | None) -> None:
    """Sets an environment variable, or removes it if the value is None."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def data_dir() -> str:
    """The folder of datasets and pretrained models: MXNET_HOME, or .mxnet in the home folder."""
    return os.getenv("MXNET_HOME", os.path.join(os.path.expanduser("~"), ".mxnet"))


def get_gpu_count() -> int:
    return torch.cuda.device_count()


def get_gpu_memory(gpu_dev_id: int) -> tuple[int, int]:
    """The free and the total memory of a GPU, in bytes."""
    return torch.cuda.mem_get_info(gpu_dev_id)
