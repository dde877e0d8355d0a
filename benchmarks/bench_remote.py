"""Saving a model of 128 MiB to an S3 server on loopback and loading it, compared with s3fs copying the same bytes.

    python benchmarks/bench_remote.py

The server is moto, in a process of its own. It is written in Python and computes the MD5 of what it gets, so it takes
most of the time; on a fast network, the client matters more. It also reads the whole object for each range that is
requested, so loads are compared with s3fs requesting as many ranges of the same size, one for each array; what s3fs
and safetensors need for the whole object is printed. Everything in leafwise is checked: each part is sent with its MD5,
arrays and header have checksums, and a load compares them. s3fs has the bytes in memory, or in a file.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import torch
from common import interleaved, machine, peak_memory
from figures import exit_status, report
from safetensors.torch import load, save
from torch import nn

import leafwise as lw

ROUNDS = 3
LAYERS, WIDTH = 8, 2048  # 128 MiB; moto keeps several copies in memory
SAVE_AT_MOST, LOAD_AT_MOST, MEMORY_AT_MOST = 1.25, 1.25, 350
URL, EDITED = "s3://bucket/model.safetensors", "s3://bucket/edited.safetensors"


@contextmanager
def server() -> Iterator[dict[str, Any]]:
    """An S3 server; yields the options of s3fs for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        endpoint = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-west-2"}
        yield {"key": "test", "secret": "test", "client_kwargs": endpoint}
    finally:
        process.terminate()
        process.wait()


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


def by_s3fs(files: Any, source: nn.Module) -> None:
    files.pipe_file("bucket/plain.safetensors", save(source.state_dict()))


def loaded_by_s3fs(files: Any, target: nn.Module) -> None:
    target.load_state_dict(load(files.cat_file("bucket/plain.safetensors")))


def ranges_by_s3fs(files: Any) -> None:
    """As many ranges as `lw.load` requests, of the same size."""
    size = WIDTH * WIDTH * 4
    starts = [4096 + number * size for number in range(LAYERS - 1)]
    whole = files.info("bucket/model.safetensors")["size"]
    starts.append(whole - size)
    name = "bucket/model.safetensors"
    parts = files.cat_ranges([name] * LAYERS, starts, [start + size for start in starts], max_gap=None)
    assert all(len(part) == size for part in parts)


def checked(files: Any, source: nn.Module, target: nn.Module) -> None:
    """The new object is intact, has the values of the model, and can be loaded by both."""
    lw.save(source, URL)
    by_s3fs(files, source)
    assert lw.verify(URL).ok
    expected = source.state_dict()
    for found in (load(files.cat_file("bucket/model.safetensors")), load(files.cat_file("bucket/plain.safetensors"))):
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    for loader in (lambda: lw.load(target, URL), lambda: loaded_by_s3fs(files, target)):
        for parameter in target.parameters():
            parameter.data.zero_()
        loader()
        assert all(torch.equal(value, expected[name]) for name, value in target.state_dict().items())


def main() -> int:
    machine()
    source, target = model(), model(1)
    with server() as options, tempfile.TemporaryDirectory() as folder:
        fsspec.config.conf["s3"] = options
        files = fsspec.filesystem("s3", **options)
        files.mkdir("bucket")
        checked(files, source, target)
        path = str(Path(folder, "model.safetensors"))
        lw.save(source, path)
        size = os.path.getsize(path)
        times = interleaved(
            ROUNDS,
            leafwise=lambda: lw.save(source, URL),
            s3fs=lambda: by_s3fs(files, source),
            s3fs_file=lambda: files.put_file(path, "bucket/file.safetensors"),
            leafwise_load=lambda: lw.load(target, URL),
            s3fs_ranges=lambda: ranges_by_s3fs(files),
            s3fs_load=lambda: loaded_by_s3fs(files, target),
        )
        for name, seconds in times.items():
            print(f"#   {name}: {seconds:.2f} s, {size / seconds / 1e6:.0f} MB/s")
        code = f"import fsspec, leafwise as lw; fsspec.config.conf['s3'] = {options!r}; lw.edit({path!r}, {EDITED!r})"
        used = peak_memory(sys.executable, "-c", code) / 1e6
    plain = min(times["s3fs"], times["s3fs_file"])
    return exit_status(
        [
            report("128 MiB to S3, lw.save / s3fs with the same bytes, time", times["leafwise"] / plain, SAVE_AT_MOST),
            report(
                "128 MiB from S3, lw.load with checksums / s3fs with ranges of that size, time",
                times["leafwise_load"] / times["s3fs_ranges"],
                LOAD_AT_MOST,
            ),
            report("— peak memory of lw.edit of a file to S3, MB", used, MEMORY_AT_MOST),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
