"""Every public name of MXNet can be imported; the table says the truth about each; the page is made from the table."""

import importlib
import pickle
import sys
import threading
from pathlib import Path
from typing import Any, Optional

import gluon_table
import pytest
from tests.forked import Commands

from leafwise_gluon import as_mxnet, autograd, dialect, modes, nd, nn, np, optimizer, random
from leafwise_gluon.base import MXNetError
from leafwise_gluon.dialect import Version
from leafwise_gluon.names.implementations import is_implemented
from leafwise_gluon.names.inventory import inventory, places
from leafwise_gluon.names.placeholder import Placeholder
from leafwise_gluon.names.table import TABLE, missing_row, status

VERSIONS: tuple[Version, ...] = (1, 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_module_and_name_can_be_imported(version: Version) -> None:
    with as_mxnet(version):
        for module, entries in inventory(version).items():
            imported = importlib.import_module(module)
            assert imported.__name__ == module
            for name, entry in entries.items():
                value = getattr(imported, name)
                is_missing = entry.kind in ("class", "function", "value") and not is_implemented(version, entry.path)
                assert isinstance(value, Placeholder) == is_missing, f"{module}.{name}"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_missing_name_has_a_row(version: Version) -> None:
    without = [path for path in places(version) if not is_implemented(version, path) and missing_row(path) is None]
    assert without == []


def test_no_row_says_that_something_is_missing_which_exists() -> None:
    wrong = [
        (path, row.paths)
        for row in TABLE
        if row.status == "missing" and not row.is_rest
        for version in VERSIONS
        for path in places(version)
        if row.covers(path) and is_implemented(version, path)
    ]
    assert wrong == []


def test_every_pattern_covers_a_name() -> None:
    every = {path for version in VERSIONS for path in places(version)}
    existing = {path for version in VERSIONS for path in places(version) if is_implemented(version, path)}
    for row in TABLE:
        for pattern in row.paths:
            among = existing if row.status == "different" else every
            assert any(row._replace(paths=(pattern,)).covers(path) for path in among), pattern


def test_the_status_of_a_name() -> None:
    assert status("mxnet.gluon.nn.basic_layers.Flatten", 1) == "same"
    assert status("mxnet.gluon.utils.download", 2) == "different"
    assert status("mxnet.symbol.symbol.Symbol", 2) == "missing"


def test_the_page_has_the_tables() -> None:
    page = gluon_table.PAGE.read_text("utf-8")
    assert page == gluon_table.page_with(gluon_table.part(), page), "run tests/gluon_table.py --write"


# -- names that are missing -------------------------------------------------------------------------------------------


def test_a_missing_name_raises_its_row_on_use() -> None:
    with as_mxnet():
        import mxnet as mx

        row = missing_row("mxnet.symbol.var")
        assert row is not None
        message = f"the Gluon front end does not support mxnet.symbol.var; {row.note}"
        with pytest.raises(MXNetError) as caught:
            mx.sym.var("x")
        assert str(caught.value) == message
        for use in (
            lambda: mx.sym.Symbol.attributes,
            lambda: bool(mx.sym.Symbol),
            lambda: mx.sym.Symbol[0],
            lambda: mx.sym.Symbol + 1,
            lambda: [*mx.sym.Symbol],
            lambda: setattr(mx.sym.Symbol, "x", 1),
        ):
            with pytest.raises(MXNetError, match=r"mxnet\.symbol\.Symbol; graphs of symbols"):
                use()
        with pytest.raises(MXNetError, match=r"mxnet\.symbol\.Symbol"):

            class Mine(mx.sym.Symbol):  # type: ignore[misc]
                pass


@pytest.mark.parametrize(
    ("module", "of_mxnet", "name"),
    [
        ("np", "mxnet.numpy", "floating_dtypes"),
        ("npx", "mxnet.numpy_extension", "multibox_target"),
        ("nd", "mxnet.ndarray", "Correlation"),
        ("nd.random", "mxnet.ndarray.random", "binomial"),
        ("optimizer", "mxnet.optimizer", "SGLD"),
    ],
)
def test_a_module_of_the_front_end_raises_the_row_of_a_missing_name(module: str, of_mxnet: str, name: str) -> None:
    row = missing_row(inventory(2)[of_mxnet][name].path)
    assert row is not None
    message = f"the Gluon front end does not support {of_mxnet}.{name}; {row.note}"
    with pytest.raises(AttributeError) as on_access:
        getattr(importlib.import_module(f"leafwise_gluon.{module}"), name)
    assert str(on_access.value) == message
    with pytest.raises(ImportError) as on_import:
        exec(f"from leafwise_gluon.{module} import {name}")
    assert str(on_import.value) == message


def test_an_optimizer_that_is_missing_raises_its_row() -> None:
    row = missing_row("mxnet.optimizer.sgld.SGLD")
    assert row is not None
    with pytest.raises(MXNetError) as caught:
        optimizer.create("sgld")
    assert str(caught.value) == f"the Gluon front end does not support the optimizer 'sgld'; {row.note}"


def test_a_module_of_the_front_end_has_the_names_that_mxnet_has_there() -> None:
    assert autograd.NDArray is nd.NDArray
    assert random.uniform is nd.random.uniform
    with pytest.raises(AttributeError, match=r"module 'mxnet\.gluon\.nn' has no attribute 'Dens'"):
        nn.Dens  # noqa: B018


def test_a_missing_name_can_be_passed_around() -> None:
    with as_mxnet():
        import mxnet as mx
        from mxnet.symbol import Symbol

        def annotated(x: Optional[Symbol] = None, y: "int | Symbol" = 0, z: Symbol | None = None) -> Any:  # noqa: UP045
            return isinstance(x, Symbol)

        assert Symbol is mx.sym.Symbol
        assert annotated() is False
        assert isinstance(3, (Symbol, int))
        assert not issubclass(int, Symbol)
        assert {Symbol: 1}[mx.symbol.Symbol] == 1
        assert not hasattr(Symbol, "shape")
        assert repr(Symbol) == "<mxnet.symbol.Symbol, which the Gluon front end does not have>"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_name_that_mxnet_does_not_have_is_an_attribute_error(version: Version) -> None:
    with as_mxnet(version):
        import mxnet as mx

        assert not hasattr(mx, "nonsense")
        with pytest.raises(AttributeError, match=r"module 'mxnet\.gluon\.nn' has no attribute 'Dens'"):
            mx.gluon.nn.Dens  # noqa: B018
        with pytest.raises(ImportError):
            exec("from mxnet import nonsense")
        with pytest.raises(ModuleNotFoundError):
            import mxnet.nonsense
    with as_mxnet(2):
        import mxnet as mx

        assert not hasattr(mx, "metric")
        assert not hasattr(mx, "mod")


# -- the dialects -----------------------------------------------------------------------------------------------------


def test_as_mxnet_sets_the_dialect_and_puts_it_back() -> None:
    assert (dialect.version(), modes.is_np_array()) == (2, True)
    with as_mxnet(1):
        import mxnet as mx

        assert (mx.__version__, mx.libinfo.__version__) == ("1.9.1", "1.9.1")
        assert (dialect.version(), modes.is_np_array()) == (1, False)
        mx.npx.set_np()
        assert modes.is_np_array()
        with as_mxnet(2):
            import mxnet as inner

            assert inner.__version__ == "2.0.0beta1"
            assert inner is not mx
        assert sys.modules["mxnet"] is mx
    assert (dialect.version(), modes.is_np_array()) == (2, True)
    assert not any(name.partition(".")[0] == "mxnet" for name in sys.modules)
    with pytest.raises(ValueError, match="1 and 2, not 3"):
        as_mxnet(3)  # type: ignore[arg-type]
    assert "mxnet" not in sys.modules


def test_the_command_line_chooses_the_dialect(tmp_path: Path, scripts: Commands) -> None:
    script = tmp_path / "script.py"
    script.write_text("import mxnet as mx\nprint(mx.__version__, type(mx.gluon.nn.Dense(1).collect_params()))")
    shown = [scripts.run(*arguments, script).stdout.strip() for arguments in ((), ("--mxnet", "1"))]
    assert shown == ["2.0.0beta1 <class 'dict'>", "1.9.1 <class 'mxnet.gluon.parameter.ParameterDict'>"]


@pytest.mark.parametrize("version", VERSIONS)
def test_classes_show_and_pickle_the_module_of_mxnet(version: Version) -> None:
    with as_mxnet(version):
        import mxnet as mx

        assert str(nn.Dense) == "<class 'mxnet.gluon.nn.basic_layers.Dense'>"
        assert str(np.ndarray) == "<class 'mxnet.numpy.ndarray'>"
        assert str(mx.nd.NDArray) == "<class 'mxnet.ndarray.ndarray.NDArray'>"
        assert pickle.loads(pickle.dumps([mx.gluon.nn.Dense, mx.cpu(1)])) == [nn.Dense, mx.cpu(1)]
    assert str(nn.Dense).startswith("<class 'leafwise_gluon.")


def test_other_threads_see_the_stand_in() -> None:
    seen: list[Any] = []
    with as_mxnet(1):
        thread = threading.Thread(target=lambda: seen.append(importlib.import_module("mxnet.gluon.nn").Dense))
        thread.start()
        thread.join()
    assert seen == [nn.Dense]


def test_import_star_gives_what_it_gives_in_mxnet() -> None:
    with as_mxnet():
        scope: dict[str, Any] = {}
        exec("from mxnet.gluon.nn import *\nfrom mxnet.test_utils import *\nfrom mxnet.numpy import *", scope)
    assert scope["Dense"] is nn.Dense
    assert scope["np"].__name__ == "numpy"
    assert scope["mx"].__name__ == "mxnet"
    assert "zeros" not in scope
