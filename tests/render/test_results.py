"""The family of results: what they share, and the modules that draw them."""

import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw
import leafwise.render.results as drawn
import leafwise.results
from leafwise.core.results.result import Result, RowTable, Table, kind_of


def model() -> nn.Module:
    net = nn.ModuleDict({"embed": nn.Embedding(9, 4), "norm": nn.BatchNorm1d(4), "head": nn.Linear(4, 9)})
    net["head"].weight = net["embed"].weight
    return net


def trained() -> nn.Module:
    net: Any = model()
    net["head"](net["norm"](net["embed"](torch.arange(9)))).sum().backward()
    return net


def fleet(folder: Path) -> Any:
    lw.save(model(), folder / "fleet.safetensors")
    with ThreadPoolExecutor(1) as executor:
        return lw.stats(f"{folder}/fleet.*", executor=executor)


def used() -> Any:
    net: Any = model()
    with lw.uses(net) as uses:
        net["head"](net["norm"](net["embed"](torch.arange(9)))).sum().backward()
    return uses


def tied_layers() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    return net


MAKE: dict[str, Callable[[Path], Any]] = {
    "Diff": lambda folder: lw.diff(model(), model()),
    "Edit": lambda folder: lw.edit(model(), folder / "edited.safetensors", cast="bfloat16"),
    "Findings": lambda folder: lw.check({"a": torch.tensor([1.0, float("nan")])}),
    "Flat": lambda folder: lw.flat(model()),
    "Fleet": fleet,
    "Groups": lambda folder: lw.groups(model(), [lw.no_decay()], lr=0.1, weight_decay=0.1),
    "Image": lambda folder: lw.image(model(), "head.weight"),
    "Largest": lambda folder: lw.tree(model()).top(3),
    "Norms": lambda folder: lw.clip(trained(), 1.0),
    "Plan": lambda folder: lw.plan(model(), {"head.weight": torch.ones(9, 4), "x": torch.ones(1)}),
    "ShardUnits": lambda folder: lw.shard_units(tied_layers(), ["0", "1"]),
    "Stats": lambda folder: lw.stats(model()),
    "Ties": lambda folder: lw.ties(model()),
    "Totals": lambda folder: lw.tree(model()).by("dtype"),
    "Tree": lambda folder: lw.tree(model()),
    "Uses": lambda folder: used(),
    "Verified": lambda folder: lw.verify(lw.save(model(), folder / "a.safetensors")),
}
NOT_TABLES = {"Image", "ShardUnits", "Verified"}


def subclasses(cls: type[Result]) -> set[type[Result]]:
    return {cls}.union(*map(subclasses, cls.__subclasses__()))


MODULES = [module.name for module in pkgutil.iter_modules(drawn.__path__)]


def test_there_is_a_module_for_every_kind_of_result() -> None:
    for kind in MODULES:
        importlib.import_module(f"leafwise.render.results.{kind}")
    classes = subclasses(Result) - {Result, RowTable, Table}
    assert {kind_of(cls) for cls in classes} == set(MODULES)
    assert {cls.__name__ for cls in classes} == set(MAKE)


@pytest.mark.parametrize("kind", MODULES)
def test_the_module_of_a_result_renders_it(kind: str) -> None:
    module = importlib.import_module(f"leafwise.render.results.{kind}")
    assert callable(module.to_json)
    assert hasattr(module, "to_doc") or (hasattr(module, "to_text") and hasattr(module, "to_html"))


@pytest.mark.parametrize("name", MAKE)
def test_results_are_importable_from_one_place(name: str, tmp_path: Path) -> None:
    cls = getattr(leafwise.results, name)
    assert name in leafwise.results.__all__
    assert type(MAKE[name](tmp_path)) is cls
    assert issubclass(cls, Table if name not in NOT_TABLES else Result)


@pytest.mark.parametrize("name", MAKE)
def test_every_result_has_the_same_methods_with_the_same_signatures(name: str) -> None:
    cls = getattr(leafwise.results, name)
    text = inspect.signature(cls.text).parameters
    base = inspect.signature(Result.text).parameters
    assert {name: text[name] for name in base} == dict(base)
    assert set(text) - set(base) <= {"depth"}  # of what has depth
    assert all(parameter.kind == inspect.Parameter.KEYWORD_ONLY for name, parameter in text.items() if name != "self")
    for method in ("json", "_repr_html_"):
        assert list(inspect.signature(getattr(cls, method)).parameters) == ["self"]
    assert hasattr(cls, "pandas") == (name not in NOT_TABLES)


@pytest.mark.parametrize("name", MAKE)
def test_every_result_becomes_text_json_and_html(name: str, tmp_path: Path) -> None:
    result = MAKE[name](tmp_path)
    assert result.text() == str(result) == repr(result) == f"{result}"
    assert result.text().strip()
    assert len(result.text(full=True)) >= 1
    for width in (30, 80):
        assert max(map(len, result.text(width=width).splitlines())) <= width
    json.dumps(result.json(), allow_nan=False)
    assert result._repr_html_().lstrip().startswith("<")
    for wrong in (0, -3, 1.5, True, "wide"):
        with pytest.raises(lw.QueryError, match="width= takes a whole number of at least 1"):
            result.text(width=wrong)


@pytest.mark.parametrize("name", sorted(MAKE.keys() - NOT_TABLES))
def test_every_table_becomes_a_data_frame(name: str, tmp_path: Path) -> None:
    frame = MAKE[name](tmp_path).pandas()
    lengths = {
        "Diff": 7, "Edit": 8, "Findings": 1, "Flat": 4, "Fleet": 1, "Groups": 4, "Largest": 3, "Norms": 4, "Plan": 8,
        "Stats": 7, "Ties": 1, "Totals": 2, "Tree": 7, "Uses": 5,
    }  # fmt: skip
    assert len(frame) == lengths[name]
    if name not in ("Findings", "Plan", "Uses"):
        assert frame.index.name in ("path", "name", "dtype", "checkpoint")
        assert frame.index.is_unique


def test_numbers_in_a_data_frame_are_those_of_the_result() -> None:
    norms = lw.clip(trained(), 1.0)
    assert norms.pandas()["norm"].to_dict() == dict(norms)
    flat = lw.flat(net := model())
    for path, row in flat.pandas().iterrows():
        assert torch.equal(flat.values[row["start"] : row["stop"]], lw.tree(net)[path].value.flatten())
    tree = lw.tree(net).pandas()
    assert tree.loc["embed.weight", "names"] == ("embed.weight", "head.weight")
    assert tree["bytes"].sum() == lw.tree(net).counts.bytes
    uses = used()
    for (path, module, call), rows in uses.pandas().groupby(["path", "module", "call"]):
        gradient = next(g for use, g in uses[path].items() if (use.path, use.call) == (module, call))
        assert rows["norm"].iloc[0] == pytest.approx(gradient.norm().item(), rel=1e-5, abs=1e-6)
    plan = MAKE["Plan"](Path()).pandas()
    assert set(plan["status"]) == {"loaded", "missing", "unexpected"}
    assert plan.set_index("path")["source"].isna()["norm.bias"]


def test_uses_that_are_not_there_yet_and_a_flat_that_was_undone_say_so() -> None:
    with lw.uses(net := model()) as uses:
        assert "no uses of 7 leaves so far" in uses.text()
    flat = lw.flat(net)
    flat.undo()
    assert "undone" in flat.text()
    assert flat.json()["undone"] is True


def test_long_tables_are_cut_and_full_shows_all() -> None:
    net = nn.Sequential(*(nn.Linear(1, 1) for _ in range(60)))
    net(torch.ones(1, 1)).sum().backward()
    for result in (lw.clip(net, 1.0), lw.flat(net)):
        assert len(result.text().splitlines()) <= 60
        assert "text(full=True) shows all" in result.text()
        assert len(result.text(full=True).splitlines()) >= 120


def test_ipython_completes_keys() -> None:
    from IPython.core import completer as completer_of
    from IPython.core.interactiveshell import InteractiveShell

    names = {"t": lw.tree(trained()), "s": lw.stats(trained()), "n": lw.clip(trained(), 1.0), "d": MAKE["Diff"](Path())}
    shell = InteractiveShell.instance()
    shell.push({**names, "u": used()})

    def offered(code: str) -> set[str]:
        with completer_of.provisionalcompleter():
            found = list(shell.Completer.completions(code, len(code)))
        return {completion.text.rstrip("\"']") for completion in found}

    try:
        assert {"embed", "head", "norm", "embed.weight", "norm.running_mean"} <= offered('t["')
        assert offered('t["norm.runn') == {"norm.running_mean", "norm.running_var"}
        for name in "snud":
            assert "embed.weight" in offered(f'{name}["emb')
    finally:
        InteractiveShell.clear_instance()
