"""Datasets, loaders, transforms and utilities print what MXNet prints, in both dialects."""

import gzip
from pathlib import Path

import numpy
import pytest
from tests.forked import Commands

from leafwise_gluon import as_mxnet, nd, np, random, utils
from leafwise_gluon.base import MXNetError
from leafwise_gluon.data import ArrayDataset, DataLoader, RecordFileDataset, batchify, vision
from leafwise_gluon.dialect import Version

HERE = Path(__file__).parent


@pytest.mark.parametrize("version", ["1", "2"])
def test_the_script_prints_what_mxnet_prints(version: str, scripts: Commands) -> None:
    done = scripts.run("--mxnet", version, HERE / "data_script.py")
    assert done.returncode == 0, done.stderr
    golden = (HERE / f"data_script.mxnet{version}.golden.txt").read_text("utf-8")
    assert done.stdout.splitlines() == golden.splitlines()


def test_workers_read_ahead_and_keep_the_order() -> None:
    samples = ArrayDataset(np.arange(40).reshape(20, 2), np.arange(20))
    for threads in (False, True):
        loader = DataLoader(samples, 3, num_workers=3, prefetch=5, thread_pool=threads)
        for _ in range(2):
            batches = list(loader)
            assert [int(y[0]) for _, y in batches] == [0, 3, 6, 9, 12, 15, 18]
            assert numpy.array_equal(numpy.concatenate([x.asnumpy() for x, _ in batches]), samples[:][0].asnumpy())


def test_a_loader_can_be_dropped_while_workers_read_ahead() -> None:
    for _ in range(3):
        loader = DataLoader(numpy.zeros((400, 20_000)), 8, num_workers=4)
        assert next(iter(loader)).shape == (8, 20_000)
        del loader


def failing(number: int) -> int:
    raise KeyError(number)


def test_an_error_in_a_worker_is_raised_here() -> None:
    loader = DataLoader(ArrayDataset([1, 2, 3]).transform(failing), 2, num_workers=1)
    with pytest.raises(KeyError):
        list(loader)


def imports_mxnet(number: int) -> int:
    import mxnet

    return number + len(mxnet.__version__)


def test_workers_have_the_stand_in() -> None:
    with as_mxnet(1):
        loader = DataLoader(ArrayDataset([1, 2]).transform(imports_mxnet), 2, num_workers=1)
        assert [batch.asnumpy().tolist() for batch in loader] == [[6, 7]]


def test_a_batch_of_a_pinned_loader_is_pinned() -> None:
    batch = next(iter(DataLoader(ArrayDataset([1.0, 2.0]), 2, pin_memory=True)))
    assert str(batch.ctx) == "cpu_pinned(0)"


def test_what_is_not_supported_is_refused_by_name() -> None:
    with pytest.raises(MXNetError, match="RecordFileDataset"):
        RecordFileDataset("x.rec")
    with pytest.raises(MXNetError, match="try_nopython"):
        DataLoader([1], 1, try_nopython=True)
    with pytest.raises(MXNetError, match="interpolation=2"):
        vision.transforms.Resize(2, interpolation=2)(np.zeros((3, 3, 1), dtype="uint8"))
    with pytest.raises(MXNetError, match=r"the download of http://host/a\.bin"):
        utils.download("http://host/a.bin")
    with pytest.raises(NotImplementedError, match="Group"):
        batchify.Pad()([(1, 2)])


def test_download_gives_a_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    right = "a9993e364706816aba3e25717850c26c9cd0d89d"
    assert utils.download("http://host/a.bin", path=str(tmp_path), sha1_hash=right) == str(tmp_path / "a.bin")
    with pytest.raises(MXNetError, match="download it yourself"):
        utils.download("http://host/a.bin", path=str(tmp_path), sha1_hash="0" * 40)


def test_mnist_is_read_from_local_files(tmp_path: Path) -> None:
    images = numpy.arange(2 * 784, dtype=numpy.uint32).astype(numpy.uint8)
    with gzip.open(tmp_path / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(bytes(16) + images.tobytes())
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(bytes(8) + bytes([7, 3]))
    dataset = vision.MNIST(str(tmp_path))
    image, label = dataset[1]
    assert (len(dataset), image.shape, image.dtype, int(label)) == (2, (28, 28, 1), numpy.uint8, 3)
    assert numpy.array_equal(image.asnumpy().ravel(), images[784:])
    with pytest.raises(MXNetError, match=r"cannot find 't10k-labels-idx1-ubyte' or .*\.gz.*does not download"):
        vision.FashionMNIST(str(tmp_path), train=False)


def test_cifar_is_read_from_local_files(tmp_path: Path) -> None:
    numbers = numpy.random.default_rng(0).integers(0, 256, (2, 3073), dtype=numpy.uint8)
    (tmp_path / "test_batch.bin").write_bytes(numbers.tobytes())
    image, label = vision.CIFAR10(str(tmp_path), train=False)[1]
    assert image.shape == (32, 32, 3)
    assert int(label) == numbers[1, 0]
    assert numpy.array_equal(image.asnumpy()[:, :, 2].ravel(), numbers[1, 1 + 2048 :])
    fine = numpy.random.default_rng(0).integers(0, 256, (2, 3074), dtype=numpy.uint8)
    (tmp_path / "test.bin").write_bytes(fine.tobytes())
    labels = [vision.CIFAR100(str(tmp_path), fine_label=which, train=False)[0][1] for which in (False, True)]
    assert [*map(int, labels)] == fine[0, :2].tolist()


@pytest.mark.parametrize("version", [1, 2])
def test_a_center_crop_moves_the_random_stream_on_in_mxnet_2(version: Version) -> None:
    with as_mxnet(version):
        arrays = np if version == 2 else nd
        random.seed(599)
        vision.transforms.CenterCrop(3)(arrays.ones((4, 6, 3)))
        number = float(arrays.random.uniform().asnumpy().ravel()[0])
    random.seed(0)
    assert number == pytest.approx(0.7075651 if version == 2 else 0.48873556, abs=1e-6)
