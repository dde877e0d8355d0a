"""`RecordFileDataset`, which is not supported."""

from leafwise_gluon.base import refusal
from leafwise_gluon.data.dataset import Dataset


class RecordFileDataset(Dataset):
    """MXNet's dataset of a RecordIO file. Here, it raises an error."""

    def __init__(self, filename: str) -> None:
        raise refusal("RecordFileDataset", "unpack the .rec file with MXNet, and read the files that it contains")
