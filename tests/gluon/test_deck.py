"""The deck runs, and prints what MXNet prints."""

import subprocess
import sys
from pathlib import Path

import pytest

from leafwise.gluon import as_mxnet, np

HERE = Path(__file__).parent


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "ignore", "-m", "leafwise.gluon", *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


@pytest.mark.parametrize("script", ["deck", "arrays"])
def test_the_deck_prints_exactly_what_mxnet_prints(script: str) -> None:
    done = run(str(HERE / f"{script}.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == (HERE / f"{script}.golden.txt").read_text("utf-8").splitlines()


def test_a_script_gets_its_arguments_its_folder_and_its_name(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("word = 'beside'")
    script = tmp_path / "script.py"
    script.write_text("import sys, beside\nprint(__name__, sys.argv[1:], beside.word, __file__)")
    done = run(str(script), "--flag", "x")
    assert done.stdout.split("\n")[0] == f"__main__ ['--flag', 'x'] beside {script}"


def test_a_missing_script_is_a_usage_error() -> None:
    done = run("nowhere.py")
    assert done.returncode == 2
    assert "cannot find the script 'nowhere.py'" in done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import mxnet.contrib", "the Gluon front end has no mxnet.contrib; it has mxnet, mxnet.autograd"),
        ("from mxnet.gluon.nn import Conv2D", "the Gluon front end has no gluon.nn.Conv2D; torch.nn may have"),
        ("import mxnet; mxnet.gluon.Trainer", "has no gluon.Trainer; use torch.optim on net.parameters()"),
        ("import mxnet; mxnet.nd.ones(3)", "has no mxnet.nd; use np"),
        ("from mxnet import np; np.einsum", "has no np.einsum; arrays are tensors, so use torch.einsum"),
        ("from mxnet import npx; npx.fully_connected", "has no npx.fully_connected; use nn.Dense"),
        ("from mxnet import np; np.random.zipf(2)", "has no np.random.zipf; use a distribution of np.random"),
        (
            "from mxnet.gluon import nn; nn.Sequential(prefix='a')",
            "does not support the arguments prefix and params of MXNet 1.x",
        ),
    ],
)
def test_the_error_for_a_missing_name_says_what_to_use(line: str, message: str) -> None:
    with as_mxnet(), pytest.raises((AttributeError, ImportError, TypeError)) as caught:
        exec(line, {})
    assert message in str(caught.value)


def test_hasattr_of_a_missing_name_is_not_an_error() -> None:
    assert not hasattr(np, "einsum")
    assert getattr(np, "einsum", None) is None
