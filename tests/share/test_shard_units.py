"""`lw.shard_units`: which ties FSDP2 would break, and units that keep them. `tests/distributed/test_ties.py` trains
with these units."""

import json

import pytest
import torch
from torch import nn

import leafwise as lw


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.layers = nn.ModuleList([Layer(4) for _ in range(3)])
        self.head = nn.Linear(4, 10, bias=False)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) * self.scale
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def tied() -> Model:
    model = Model()
    model.head.weight = model.embed.weight
    return model


LAYERS = [["layers.0"], ["layers.1"], ["layers.2"]]


def test_units_are_listed_bottom_up_with_the_model_last() -> None:
    model = Model()
    units = lw.shard_units(model, ["layers.*", "layers.0.up", model.embed])
    assert units.paths == [["layers.0.up"], ["layers.0"], ["layers.1"], ["layers.2"], ["embed"], [""]]
    assert units[0] == [model.layers[0].up]
    assert units[-1] == [model]
    assert len(units) == 6
    assert units.ok
    assert units.ties == []
    assert str(units).startswith("no ties")


def test_a_tie_inside_one_unit_is_kept_as_it_is() -> None:
    for given in ("layers.*", ["layers.*", ["embed", "head"]], ["layers.*", ""], list(tied().layers)[:0]):
        units = lw.shard_units(tied(), given)
        assert units.ok
        [tie] = units.ties
        assert tie.kept
        assert len(tie.units) == 1
    assert lw.shard_units(tied(), ["layers.*", ["embed", "head"]]).paths == [*LAYERS, ["embed", "head"], [""]]


@pytest.mark.parametrize(
    ("given", "in_units"),
    [
        (["layers.*", "head"], ("", "head")),
        (["layers.*", "embed"], ("embed", "")),
        (["layers.*", "embed", "head"], ("embed", "head")),
    ],
)
def test_a_tie_across_units_is_reported_and_its_modules_become_one_unit(given: list[str], in_units: tuple[str]) -> None:
    model = tied()
    units = lw.shard_units(model, given)
    [tie] = units.ties
    assert (tie.units, tie.kept, units.ok) == (in_units, False, False)
    assert units.paths == [*LAYERS, ["embed", "head"], [""]]
    assert units[3] == [model.embed, model.head]
    assert len(lw.ties(model)) == 1  # nothing was changed


def test_layers_that_share_a_weight_are_not_gathered_together_as_a_whole() -> None:
    model = Model()
    model.layers[2].up.weight = model.layers[0].up.weight
    units = lw.shard_units(model, "layers.*")
    assert units.ties[0].units == ("layers.0", "layers.2")
    assert units.paths == [["layers.0.up", "layers.2.up"], *LAYERS, [""]]


def test_a_module_that_is_used_in_several_units_becomes_a_unit() -> None:
    model = Model()
    model.layers[2].up = model.layers[0].up
    units = lw.shard_units(model, "layers.*")
    assert not units.ok
    assert units.paths == [["layers.0.up"], *LAYERS, [""]]


def test_a_layer_that_is_used_several_times_is_one_unit() -> None:
    model = Model()
    model.layers[2] = model.layers[0]
    units = lw.shard_units(model, "layers.*")
    assert units.ok
    assert units.paths == [["layers.0"], ["layers.1"], [""]]


def test_groups_of_the_caller_stay_together() -> None:
    model = tied()
    units = lw.shard_units(model, [["layers.2", "head"], "layers.0"])
    assert units.paths == [["layers.0"], ["embed", "layers.2", "head"], [""]]
    # A module in another one of its unit is part of that one.
    assert lw.shard_units(Model(), [["layers.0.up", "layers.0"]]).paths == [["layers.0"], [""]]


def test_units_are_left_out_where_modules_cannot_be_grouped() -> None:
    model = Model()
    model.head.weight = nn.Parameter(torch.zeros(10, 4))
    model.other = model.head.weight  # a parameter of the model itself
    units = lw.shard_units(model, ["layers.*", "head"])
    assert not units.ok
    assert units.paths == [*LAYERS, [""]]
    model = Model()
    model.layers[0].extra = model.layers[0].up.weight  # the owner of one name contains that of the other
    assert lw.shard_units(model, ["layers.*", "layers.0.up"]).paths == [*LAYERS, [""]]
    model = Model()
    model.table = nn.ParameterList([model.head.weight])  # has no forward
    assert lw.shard_units(model, ["layers.*", "head"]).paths == [*LAYERS, [""]]


def test_several_ties_of_one_module_make_one_unit() -> None:
    model = Model()
    model.layers[1].up.weight = model.layers[0].up.weight
    model.layers[2].down.weight = model.layers[1].down.weight
    model.layers[2].up.bias = model.layers[0].up.bias
    units = lw.shard_units(model, "layers.*")
    assert len(units.ties) == 3
    up, down = ["layers.0.up", "layers.1.up", "layers.2.up"], ["layers.1.down", "layers.2.down"]
    assert units.paths == [up, ["layers.0"], down, ["layers.1"], ["layers.2"], [""]]


def test_tied_buffers_are_kept_wherever_they_are() -> None:
    model = Model()
    table = torch.zeros(3)
    for layer in model.layers:
        layer.register_buffer("table", table)
    units = lw.shard_units(model, "layers.*")
    assert units.ok
    assert len(units.ties) == 1
    assert units.paths == [*LAYERS, [""]]


def test_a_transposed_tie_is_kept_if_the_unit_of_its_source_contains_the_view() -> None:
    model = Model()
    lw.tie(model, "layers.1.down.weight", to="layers.0.up.weight", transpose=True, keep="source")
    units = lw.shard_units(model, "layers.*")
    assert not units.ok
    assert units.paths == [["layers.0.up", "layers.1.down"], *LAYERS, [""]]
    assert lw.shard_units(model, ["layers.1", "layers.2"]).ok  # the source is in the model itself
    assert not lw.shard_units(model, ["layers.0", "layers.2"]).ok
    assert "transpose" in str(units)


def test_text_and_json() -> None:
    model = tied()
    units = lw.shard_units(model, ["layers.*", "head"])
    assert units.text().splitlines() == [
        "embed.weight  broken: in the model itself, and in head",
        "└─ head.weight",
        "",
        "pass these to fully_shard, in this order:",
        "  layers.0",
        "  layers.1",
        "  layers.2",
        "  [embed, head]",
        "  the model",
    ]
    assert json.loads(json.dumps(units.json())) == {
        "ok": False,
        "ties": [
            {"leaf": "embed.weight", "names": ["embed.weight", "head.weight"], "units": ["", "head"], "kept": False}
        ],
        "units": [*LAYERS, ["embed", "head"], [""]],
    }
    assert "embed.weight" in units._repr_html_()
    many = nn.Sequential(*(nn.Linear(1, 1) for _ in range(50)))
    text = lw.shard_units(many, "*").text()
    assert len(text.splitlines()) < 25
    assert "more units" in text
    assert len(lw.shard_units(many, "*").text(full=True).splitlines()) > 50


def test_units_that_cannot_be_sharded_are_refused_by_name() -> None:
    model = Model()
    with pytest.raises(lw.QueryError, match=r"cannot use layers as a unit: a ModuleList has no forward"):
        lw.shard_units(model, "layers")
    with pytest.raises(lw.PathError, match=r'cannot use "layer.\*" as a unit: .*did you mean|cannot use'):
        lw.shard_units(model, "layer.*")
    with pytest.raises(lw.QueryError, match=r"takes modules of the model, paths, and globs"):
        lw.shard_units(model, [nn.Linear(2, 2)])
    with pytest.raises(lw.QueryError, match=r"layers.0 is in two units"):
        lw.shard_units(model, ["layers.*", ["layers.0", "head"]])
    with pytest.raises(lw.QueryError, match=r"contains a part of a unit"):
        lw.shard_units(model, [["layers.0", "layers.1.up"], ["layers.1", "layers.0.up"]])
    with pytest.raises(lw.QueryError, match=r"cannot use the model as a unit"):
        lw.shard_units({"a": nn.Linear(2, 2)}, "a")


def test_units_of_a_part_are_relative_to_it() -> None:
    model = Model()
    part = lw.tree(model)["layers.0"]
    units = lw.shard_units(part, ["up"])
    assert units[0] == [model.layers[0].up]
    assert units[-1] == [model.layers[0]]
