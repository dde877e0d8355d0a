"""Writes the golden `.params` files with MXNet itself; run it in a throw-away environment with that version of MXNet.

    python -m venv /tmp/mx && /tmp/mx/bin/pip install mxnet==1.9.1 numpy==1.23.5
    /tmp/mx/bin/python tests/files/record_mxnet.py tests/files/golden

NumPy writes the values to separate files, so that the test does not need MXNet.
"""

import sys
from pathlib import Path

import numpy as np


def main(folder: Path) -> None:
    import mxnet as mx

    version = mx.__version__
    random = np.random.RandomState(0)
    dense = {
        "0.weight": random.randn(3, 4).astype("float32"),
        "0.bias": np.zeros(3, "float32"),
        "double": random.randn(2, 2),
        "half": random.randn(5).astype("float16"),
        "bytes": np.arange(6, dtype="uint8").reshape(2, 3),
        "small": np.arange(4, dtype="int8"),
        "int": np.arange(3, dtype="int32"),
        "long": np.arange(3, dtype="int64"),
    }
    mx.nd.save(
        str(folder / f"mxnet-{version}-list.params"), {k: mx.nd.array(v, dtype=v.dtype) for k, v in dense.items()}
    )
    mx.nd.save(str(folder / f"mxnet-{version}-unnamed.params"), [mx.nd.array(dense["0.weight"])])
    rows = np.zeros((5, 3), "float32")
    rows[[1, 4]] = random.randn(2, 3)
    table = np.zeros((4, 6), "float32")
    table[[0, 1, 1, 3], [2, 0, 5, 3]] = random.randn(4)
    values = {**dense, "rows": rows, "table": table}
    if version.startswith("1"):  # MXNet 2 refuses to save sparse arrays
        sparse = {"rows": mx.nd.array(rows).tostype("row_sparse"), "table": mx.nd.array(table).tostype("csr")}
        mx.nd.save(str(folder / f"mxnet-{version}-sparse.params"), sparse)
    else:
        mx.npx.set_np()
        net = mx.gluon.nn.Sequential()
        net.add(mx.gluon.nn.Dense(3, in_units=4), mx.gluon.nn.Dense(1, in_units=3))
        net.initialize()
        net.save_parameters(str(folder / f"mxnet-{version}-gluon.params"))
        values.update({f"gluon.{k}": v.data().asnumpy() for k, v in net.collect_params().items()})
    np.savez(folder / f"mxnet-{version}-values.npz", **values)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
