"""Bad input and odd models that once gave a wrong answer, a wrong exception, or took for ever."""

import copy
import enum
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.core.memory import Memory, Region, compare

z = torch.zeros


def paths(tree: lw.Tree) -> list[str]:
    return [str(path) for path, _ in tree.items()]


@pytest.mark.parametrize(
    "facts",
    [
        {"dtype": (torch.float32,)},
        {"dtype": [torch.float32, torch.int64]},
        {"dtype": np.float32},
        {"dtype": np.dtype("float32")},
        {"owner": (nn.Linear, nn.BatchNorm1d)},
        {"owner": (nn.Linear, "Batch*")},
        {"device": torch.device("cpu")},
    ],
)
def test_where_takes_values_as_people_have_them(facts: dict[str, Any]) -> None:
    assert len(lw.tree(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))).select(lw.where(**facts))) >= 4


def test_where_refuses_what_it_cannot_ask_for() -> None:
    with pytest.raises(lw.QueryError, match=r"cannot ask for ndim=2.5; give a number"):
        lw.where(ndim=2.5)
    with pytest.raises(lw.QueryError, match=r"lw.where\(owner=Linear\)"):
        lw.tree(nn.Linear(1, 1)).select(nn.Linear)


@pytest.mark.parametrize(
    ("leaf", "value"),
    [
        (z(2, dtype=torch.int64), [1.7, 2.2]),
        (z(2, dtype=torch.bool), [0.5, 0]),
        (z(2, dtype=torch.uint8), [1, 300]),
        (z(2), [1j, 1]),
        (z(()), None),
        (np.zeros(2, np.uint8), [1.7, 300]),
        (np.zeros(2, np.uint8), [1, 300]),
        (np.zeros(2), [1j, 1]),
        (np.zeros(2), ["x", "y"]),
        (np.zeros(2), [[1], [1, 2]]),
        (np.zeros(()), None),
        (z(4).expand(3, 4), torch.ones(3, 4)),
        (z(2, 2), torch.eye(2).to_sparse()),
        (z(2), z(2, device="meta")),
    ],
    ids=str,
)
def test_a_write_that_would_lose_something_changes_nothing(leaf: Any, value: Any) -> None:
    before = leaf.clone() if isinstance(leaf, torch.Tensor) else leaf.copy()
    with pytest.raises(lw.WriteError, match=r"^w: .*nothing was changed$"):
        lw.tree({"w": leaf})["w"].write(value)
    assert (before == leaf).all()


def test_python_numbers_are_rounded_to_the_precision_of_the_leaf() -> None:
    leaf = z(2, dtype=torch.bfloat16)
    lw.tree({"w": leaf})["w"].write([0.1, 3])
    assert leaf.tolist() == torch.tensor([0.1, 3]).bfloat16().tolist()


def test_buffers_that_a_move_replaced_are_read_and_written_where_they_are_now() -> None:
    model = nn.BatchNorm1d(3)
    tree = lw.tree(model)
    model.double()
    assert tree["running_mean"].dtype == "float64"
    assert tree["running_mean"].value is model.running_mean
    tree["running_mean"].write(torch.ones(3, dtype=torch.float64))
    assert model.running_mean.tolist() == [1, 1, 1]
    assert "float32" not in tree.text()


def test_a_buffer_saved_under_one_of_its_names_is_saved() -> None:
    model, buffer = nn.Module(), z(3)
    model.register_buffer("a", buffer, persistent=False)
    model.register_buffer("b", buffer)
    tree = lw.tree(model)
    assert tree["b"].persistent
    assert "not saved" not in tree.text()
    assert paths(tree.select(lw.where(persistent=True))) == ["a"]


class WrapperWithMore(nn.DataParallel):
    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.extra = nn.Linear(2, 2)


def test_only_what_is_wrapped_is_hidden_in_a_wrapper_that_holds_more() -> None:
    model = WrapperWithMore(nn.Linear(3, 4))
    tree = lw.tree(model)
    assert paths(tree) == ["weight", "bias", "extra.weight", "extra.bias"]
    assert tree["extra.weight"].value is model.extra.weight
    assert tree["weight"].value is model.module.weight
    assert len(tree.select("extra.**")) == 2
    assert "extra  Linear" in tree.text()
    for path, leaf in tree.items():
        assert path.fetch(model) is leaf.value


def test_a_name_that_only_contains_layernorm_is_no_norm() -> None:
    class PreLayerNormHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(z(3))

    assert lw.tree(PreLayerNormHead())["bias"].role is None


def test_hooks_keep_the_role_of_what_they_compute() -> None:
    import warnings

    from torch.nn.utils import prune

    pruned = prune.l1_unstructured(nn.Linear(3, 4), "weight", amount=1)
    assert lw.tree(pruned)["weight_orig"].role == "linear.weight"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        normed = lw.tree(nn.utils.weight_norm(nn.Linear(3, 4)))
        spectral = lw.tree(nn.utils.spectral_norm(nn.Linear(3, 4)))
    assert (normed["weight_v"].role, normed["weight_g"].role) == ("linear.weight", None)
    assert (spectral["weight_orig"].role, spectral["weight_v"].role) == ("linear.weight", None)


def test_shared_memory_is_told_of_subtrees_too() -> None:
    weight = z(3)
    model = nn.Module()
    model.a = nn.Parameter(weight)
    model.s = nn.ParameterList([nn.Parameter(weight), nn.Parameter(weight)])
    assert [len(shared.leaves) for shared in lw.tree(model).shared_memory] == [3]
    assert [len(shared.leaves) for shared in lw.tree(model)["s"].shared_memory] == [2]


def test_what_nobody_says_is_frozen_is_not_called_so() -> None:
    text = lw.tree({"model": nn.Linear(2, 2), "mean": z(3)}).text()
    assert "9 parameters (6 trainable)" in text
    assert "frozen" not in text


def test_an_expanded_tensor_is_a_view_of_what_it_repeats() -> None:
    base = z(4)
    tree = lw.tree({"e": base.expand(1000, 4), "base": base})
    assert [str(path) for path in tree["base"].paths] == ["base", "e"]
    assert tree.counts.parameters == 4


def test_absurdly_long_numbers_are_shown_all_the_same() -> None:
    keys = [str(10**4000 + n) for n in range(3)]
    tree = lw.tree({key: z(1) for key in keys} | {"n": 10**5000})
    assert "too long to write" in tree.text()
    assert tree._repr_html_()
    assert json.dumps(tree.json())


def test_a_tensor_that_refuses_everything_is_a_leaf_without_memory() -> None:
    class Refuses(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise TypeError("not today")

    tree = lw.tree({"a": {"b": z(2).as_subclass(Refuses)}})
    with pytest.raises(lw.WalkError, match=r"^a\.b: .*not today"):
        tree.text()


def test_nested_tensors_have_no_shape() -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = [torch.nested.nested_tensor([z(2), z(3)], layout=kind) for kind in (torch.strided, torch.jagged)]
    tree = lw.tree(nested)
    assert [leaf.shape for leaf in tree] == [None, None]
    assert [leaf.size for leaf in tree] == [5, 5]
    assert tree.text()
    assert tree._repr_html_()
    with pytest.raises(lw.Unsupported, match="nested"):
        tree["0"].numpy()


def test_a_dtype_numpy_does_not_have_is_unsupported() -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = torch.zeros(2, dtype=torch.complex32)
    with pytest.raises(lw.Unsupported, match="NumPy"):
        lw.tree({"w": value})["w"].numpy()


def test_trees_paths_and_leaves_can_be_copied_and_pickled() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.Adam(net.parameters())
    net(z(1, 2)).sum().backward()
    optimizer.step()
    tree = lw.tree({"model": net, "optimizer": optimizer})
    before = paths(tree)
    for again in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree)):
        assert paths(again) == before


def test_a_thousand_parameters_over_one_memory_are_compared_once() -> None:
    memory = Memory(0, (4,), (4,), 4, "float32")
    merged, overlaps = compare([Region(n, memory, True) for n in range(20_000)])
    assert merged == {}
    assert [(len(one.members), one.separate_gradients) for one in overlaps] == [(20_000, True)]
    whole = Region(0, Memory(0, (40_000,), (4,), 4, "float32"), True)
    parts = [Region(n + 1, Memory(8 * n, (2,), (4,), 4, "float32"), True) for n in range(20_000)]
    assert [len(one.members) for one in compare([whole, *parts])[1]] == [20_001]


def test_a_very_long_sequential_tells_its_paths() -> None:
    net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(5000)])
    assert lw.tree(net).items()[-1][0].code("net") == "net[4999].weight"
    assert lw.tree(net[10:]).items()[-1][0].code("net") == "net[4989].weight"


def test_deep_names_in_a_file_cost_no_square(tmp_path: Path) -> None:
    header = {".".join([f"k{n}"] * 200): {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(400)}
    raw = json.dumps(header).encode()
    file = tmp_path / "deep.safetensors"
    file.write_bytes(len(raw).to_bytes(8, "little") + raw)
    tree = lw.tree(file)
    assert len(tree.json()["leaves"]) == 400
    assert len(tree.text().splitlines()) <= 60


def test_a_name_twice_among_very_many_is_found_at_once(tmp_path: Path) -> None:
    rows = ",".join(f'"n{n}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for n in [*range(50_000), 49_999])
    raw = f"{{{rows}}}".encode()
    file = tmp_path / "twice.safetensors"
    file.write_bytes(len(raw).to_bytes(8, "little") + raw)
    with pytest.raises(lw.FileError, match="'n49999' stands there twice"):
        lw.tree(file)


def test_the_root_of_a_part_of_a_state_dict_has_its_name() -> None:
    tree = lw.tree(nn.Sequential(nn.Linear(2, 2)).state_dict())
    assert tree["0"].text().splitlines()[0].startswith("0 ")


def test_a_tree_takes_its_own_paths() -> None:
    below = lw.tree({"model": nn.Linear(2, 2)})["model"]
    path, leaf = below.items()[0]
    assert below[path] is leaf
    assert path in below
    assert paths(below.select(path)) == [str(path)]
    assert below["weight"] is leaf


def test_empty_and_plain_roots() -> None:
    assert len(lw.tree([])) == 0
    with pytest.raises(lw.WalkError, match="holds only plain values"):
        lw.tree([1, 2])


def test_odd_questions_get_plain_answers() -> None:
    tree = lw.tree(nn.Linear(2, 2))
    assert "a..b" not in tree
    assert None not in tree
    with pytest.raises(lw.QueryError, match="a path is text"):
        tree[None]


def test_a_tensor_named_like_the_metadata_is_reached(tmp_path: Path) -> None:
    header = {"__metadata__": {"x": "text"}, "__metadata__.y": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}
    raw = json.dumps(header).encode()
    file = tmp_path / "m"
    file.write_bytes(len(raw).to_bytes(8, "little") + raw)
    tree = lw.tree(file)
    assert tree["__metadata__.x"] == "text"
    assert tree["__metadata__.y"].shape == (0,)


def test_one_key_that_is_no_string_does_not_keep_others_from_splitting() -> None:
    state = {"a.w": z(1), 0: 1}
    tree = lw.tree(state)
    assert tree["a.w"].path.names == ("a", "w")
    assert tree["a.w"].path.fetch(state) is state["a.w"]
    assert tree["0"] == 1


def test_paths_are_made_from_what_they_print() -> None:
    path = lw.tree({"a.b": {"c*": z(1)}}).items()[0][0]
    assert str(path) == '"a.b"."c*"'
    assert eval(repr(path), {"Path": lw.Path}) == path
    assert len(lw.tree({"a.b": {"c*": z(1), "cc": z(1)}}).select(str(path))) == 1


def test_a_parsed_path_fetches_from_a_state_dict_inside_another() -> None:
    state = nn.Linear(2, 2).state_dict()
    assert lw.Path.parse("model.0.weight").fetch({"model": {"0.weight": 5}}) == 5
    assert lw.Path.parse("model.weight").fetch({"model": state}) is state["weight"]


def test_keys_of_any_kind_fetch() -> None:
    class Color(enum.Enum):
        RED = 1

    obj = {Color.RED: z(1), (1, 2): z(2), 1.5: z(3)}
    for path, leaf in lw.tree(obj).items():
        assert path.fetch(obj) is leaf.value


def test_add_roles_refuses_what_is_no_layer() -> None:
    with pytest.raises(TypeError, match="a layer is a class or the name of one"):
        lw.add_roles(5, {"w": ("norm.scale", ("features",))})  # type: ignore[arg-type]
