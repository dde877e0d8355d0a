"""Writes the files of tests/files with MXNet. Run it once with each version, as record_zoo.py."""

import os
from pathlib import Path

import mxnet
from file_nets import filled, net_of
from mxnet.gluon import nn, rnn

VERSION = int(mxnet.__version__[0])
FOLDER = Path(__file__).parent / "files"


def main() -> None:
    os.chdir(FOLDER)
    for mode in ("nd", "np") if VERSION == 1 else ("np",):
        (mxnet.npx.set_np if mode == "np" else mxnet.npx.reset_np)()
        array = mxnet.np.array if mode == "np" else mxnet.nd.array
        net = net_of(nn, VERSION)
        net.initialize()
        net(array([[[[0.0] * 4] * 4] * 2]))
        filled(net, array)
        net.save_parameters(f"{VERSION}-{mode}.params")
        net.save_parameters(f"{VERSION}-{mode}-once.params", deduplicate=True)
        if mode == "nd":
            net.collect_params().save("1-dict.params")
            net.collect_params().save("1-dict-bare.params", strip_prefix="net_")
        if mode == "nd" or VERSION == 2:
            net.hybridize()
            net(array([[[[0.0] * 4] * 4] * 2]))
            net.export(f"{VERSION}-exported")
            os.remove(f"{VERSION}-exported-symbol.json")
        lstm = rnn.LSTM(3, input_size=2, **({"prefix": "lstm_"} if VERSION == 1 else {}))
        lstm.initialize()
        lstm(array([[[0.0] * 2]]))
        filled(lstm, array)
        lstm.save_parameters(f"{VERSION}-{mode}-lstm.params")
        if mode == "nd":
            mxnet.nd.save("1-nd-list.params", [mxnet.nd.arange(6).reshape((2, 3)), mxnet.nd.ones((1,), dtype="int8")])
        elif VERSION == 1:
            mxnet.npx.save("1-np-list.params", [mxnet.np.arange(6).reshape(2, 3), mxnet.np.array(7.5)])
        else:
            mxnet.npx.savez("2-np-savez.npz", mxnet.np.arange(6).reshape(2, 3), x=mxnet.np.array(7.5))
            mxnet.npx.save("2-np-save.npy", mxnet.np.arange(6).reshape(2, 3))


main()
