"""MNIST, FashionMNIST, CIFAR-10 and CIFAR-100 from local files in their standard formats. Nothing is downloaded."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy

from leafwise_gluon.base import MXNetError
from leafwise_gluon.data.conversion import array_by_mode
from leafwise_gluon.data.dataset import Dataset
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.environment import data_dir
from leafwise_gluon.modes import is_np_array

_Images = tuple[Any, Any]  # NumPy's arrays of images and labels


class LocalDataset(Dataset):
    """Images and labels from files in a folder. A sample is an image (height × width × channels) and its label."""

    folder: ClassVar[str]

    def __init__(
        self, root: str | None = None, train: bool = True, transform: Callable[[Any, Any], Any] | None = None
    ) -> None:
        if transform is not None and not is_v1():
            raise DeprecationWarning(
                "Directly apply transform to dataset is deprecated. "
                "Please use dataset.transform() or dataset.transform_first() instead..."
            )
        self._transform = transform
        self._root = Path(os.path.expanduser(root or os.path.join(data_dir(), "datasets", self.folder)))
        images, labels = self.read(train)
        self._data = array_by_mode(images)
        self._label = array_by_mode(labels) if is_np_array() else labels

    def read(self, train: bool) -> _Images:
        """The images and the labels of the training set or of the test set."""
        raise NotImplementedError

    def content(self, name: str) -> Any:
        """The bytes of a file of the folder, which may be compressed."""
        for path in (self._root / name, self._root / f"{name}.gz"):
            if path.exists():
                raw = path.read_bytes()
                return numpy.frombuffer(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, dtype=numpy.uint8)
        raise MXNetError(
            f"{type(self).__name__}: cannot find {name!r} or {name + '.gz'!r} in {str(self._root)!r}. "
            "The Gluon front end does not download; put the files there, or pass root="
        )

    def __getitem__(self, idx: Any) -> Any:
        sample = self._data[idx], self._label[idx]
        return sample if self._transform is None else self._transform(*sample)

    def __len__(self) -> int:
        return len(self._label)


class MNIST(LocalDataset):
    """Handwritten digits, from the files `train-images-idx3-ubyte.gz` and so on, compressed or not."""

    folder = "mnist"

    def read(self, train: bool) -> _Images:
        start = "train" if train else "t10k"
        labels = self.content(f"{start}-labels-idx1-ubyte")[8:].astype(numpy.int32)
        return self.content(f"{start}-images-idx3-ubyte")[16:].reshape(len(labels), 28, 28, 1), labels


class FashionMNIST(MNIST):
    """Pictures of clothes, in the format of MNIST."""

    folder = "fashion-mnist"


class CIFAR10(LocalDataset):
    """Small photographs of ten kinds, from the files `data_batch_1.bin` and so on."""

    folder = "cifar10"
    files: ClassVar[dict[bool, tuple[str, ...]]] = {
        True: tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        False: ("test_batch.bin",),
    }
    labels, column = 1, 0  # how many bytes before each image are labels, and which of them is taken

    def read(self, train: bool) -> _Images:
        rows = numpy.concatenate([self.content(name).reshape(-1, 3072 + self.labels) for name in self.files[train]])
        images = rows[:, self.labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return images, rows[:, self.column].astype(numpy.int32)


class CIFAR100(CIFAR10):
    """Small photographs of a hundred kinds (`fine_label=True`) in twenty groups, from `train.bin` and `test.bin`."""

    folder = "cifar100"
    files: ClassVar[dict[bool, tuple[str, ...]]] = {True: ("train.bin",), False: ("test.bin",)}
    labels = 2

    def __init__(
        self,
        root: str | None = None,
        fine_label: bool = False,
        train: bool = True,
        transform: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.column = int(fine_label)
        super().__init__(root, train, transform)
