"""Records what MXNet computes for the cases of training_facts.py, and what it prints for the scripts of training.

Run it with an interpreter that has MXNet 1.9.1, and then with one that has 2.0.0b1 (see record_golden.py):

    mx1/bin/python tests/record_training.py && mx2/bin/python tests/record_training.py
"""

import logging
import subprocess
import sys
import warnings
from pathlib import Path

import mxnet
import training_curves
import training_facts

HERE = Path(__file__).parent
VERSION = int(mxnet.__version__[0])


def modules():
    metric = mxnet.metric if VERSION == 1 else mxnet.gluon.metric
    return {
        "optimizer": mxnet.optimizer,
        "lr_scheduler": mxnet.lr_scheduler,
        "loss": mxnet.gluon.loss,
        "metric": metric,
        "autograd": mxnet.autograd,
        "nd": mxnet.nd,
    }


def main() -> None:
    logging.disable()
    facts = {}
    for mode in ("nd", "np"):
        if mode == "np":
            mxnet.npx.set_np()
        else:
            mxnet.npx.reset_np()
        module = getattr(mxnet, mode)
        measured = training_facts.Facts(
            modules(), lambda values, module=module: module.array(values, dtype=values.dtype), VERSION
        )
        facts[mode] = measured.all(is_legacy=mode == "nd")
        if (VERSION, mode) != (2, "nd"):  # which MXNet 2.x has no layers for
            facts[mode]["curve"] = {name: training_curves.curve(mxnet, mode, name) for name in training_curves.CURVES}
        mxnet.nd.waitall()
    text = training_facts.as_text(facts)
    (HERE / f"training.golden{VERSION}.json").write_text(text + "\n", encoding="utf-8")
    script = [sys.executable, "-W", "ignore", HERE / "training_script.py"]
    done = subprocess.run(script, capture_output=True, encoding="utf-8", check=True)
    (HERE / f"training_script.mxnet{VERSION}.golden.txt").write_text(done.stdout)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
