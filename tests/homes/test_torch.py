"""Trees of PyTorch models: names and order as in PyTorch, wrappers, views, subclasses, and writes."""

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from tests.trees import paths
from torch import nn

import leafwise as lw


class Everything(nn.Module):
    """Every way in which a module can hold something."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.randn(2))
        self.register_parameter("nothing", None)
        self.register_buffer("kept", torch.zeros(2))
        self.register_buffer("passing", torch.zeros(3), persistent=False)
        self.register_buffer("no_buffer", None)
        self.list = nn.ModuleList([nn.Linear(2, 2), nn.Conv2d(1, 1, 3)])
        self.dict = nn.ModuleDict({"a": nn.BatchNorm1d(2), "b-c": nn.LSTM(2, 2, num_layers=2)})
        self.parameters_list = nn.ParameterList([torch.zeros(1), torch.zeros(2)])
        self.parameters_dict = nn.ParameterDict({"x": torch.zeros(1), "y": torch.zeros(2)})
        self.attention = nn.MultiheadAttention(4, 2)
        self.embedding = nn.Embedding(3, 4)
        self.gone: nn.Module | None = nn.ReLU()
        self.gone = None
        self.shared = self.list[0]


def named(tree: lw.Tree) -> list[tuple[str, Any]]:
    return [(str(path), leaf.value) for path, leaf in tree.items()]


@pytest.mark.parametrize(
    "build",
    [
        Everything,
        lambda: nn.Transformer(8, 2, 1, 1, 8, batch_first=True),
        lambda: nn.Sequential(nn.GRU(2, 3, bidirectional=True), nn.PReLU(), nn.Bilinear(2, 2, 2)),
        lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 10, [3, 6]),
    ],
)
def test_parameters_are_those_of_named_parameters_in_its_order(build: Any) -> None:
    model = build()
    found = named(lw.tree(model).select(lw.where(kind="parameter")))
    expected = list(model.named_parameters())
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert all(mine is theirs for (_, mine), (_, theirs) in zip(found, expected, strict=True))


def test_buffers_are_those_of_named_buffers_and_know_whether_they_are_saved() -> None:
    model = Everything()
    tree = lw.tree(model).select(lw.where(kind="buffer"))
    assert named(tree) == list(model.named_buffers())
    saved = {str(path) for path, leaf in tree.items() if leaf.persistent}
    assert saved == set(dict(model.named_buffers())) & set(model.state_dict())
    assert lw.tree(model)["passing"].persistent is False


def test_buffers_that_a_move_replaced_are_read_and_written_where_they_are_now() -> None:
    model = nn.BatchNorm1d(3)
    tree = lw.tree(model)
    model.double()
    assert tree["running_mean"].dtype == "float64"
    assert tree["running_mean"].value is model.running_mean
    tree["running_mean"].write(torch.ones(3, dtype=torch.float64))
    assert model.running_mean.tolist() == [1, 1, 1]
    assert "float32" not in tree.text()


def test_a_buffer_is_saved_if_one_of_its_names_is() -> None:
    model, buffer = nn.Module(), torch.zeros(3)
    model.register_buffer("a", buffer, persistent=False)
    model.register_buffer("b", buffer)
    tree = lw.tree(model)
    assert tree["b"].persistent
    assert "not saved" not in tree.text()
    assert paths(tree.select(lw.where(persistent=True))) == ["a"]


def test_a_state_dict_gives_the_same_paths_as_the_model() -> None:
    model = Everything()
    of_model = lw.tree(model).select(lw.where(persistent=True))
    of_state = lw.tree(model.state_dict())
    assert [str(path) for path, _ in of_model.items()] == [str(path) for path, _ in of_state.items()]
    assert [leaf.paths for leaf in of_model] == [leaf.paths for leaf in of_state]
    assert [leaf.shape for leaf in of_model] == [leaf.shape for leaf in of_state]
    assert of_model.counts._replace(trainable=0, parameters=0, buffers=0) == of_state.counts._replace(
        trainable=0, parameters=0, buffers=0
    )


def test_code_reaches_every_leaf() -> None:
    model = Everything()
    tree = lw.tree(model)
    for path, leaf in tree.items():
        assert eval(path.code("model"), {"model": model}) is leaf.value
        assert path.fetch(model) is leaf.value
        assert lw.Path.parse(str(path)).fetch(model) is leaf.value
    assert tree["list.0.weight"].path.code("net") == "net.list[0].weight"
    assert tree["dict.b-c.weight_ih_l1"].path.code("net") == "net.dict['b-c'].weight_ih_l1"
    assert tree["parameters_list.1"].path.code("net") == "net.parameters_list[1]"


def test_code_counts_positions_in_a_sliced_sequential() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2), nn.Linear(2, 3))[1:]
    tree = lw.tree(net)
    path = tree.items()[-1][0]
    assert str(path) == "2.bias"
    assert path.code("net") == "net[1].bias"
    assert path.fetch(net) is net[1].bias


def test_parametrized_modules_keep_pytorchs_own_names() -> None:
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
        nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)),
    )
    tree = lw.tree(model)
    found = named(tree.select(lw.where(kind="parameter")))
    expected = list(model.named_parameters())
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert tree["0.parametrizations.weight.original1"].role == "linear.weight"
    assert tree["0.parametrizations.weight.original1"].axes == ("out", "in")
    assert tree["0.parametrizations.weight.original0"].role is None
    assert tree["1.parametrizations.weight.original"].role == "linear.weight"
    for path, leaf in tree.items():
        assert path.fetch(model) is leaf.value
        assert eval(path.code("model"), {"model": model}) is leaf.value


def test_the_older_weight_norm_keeps_its_names_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.utils.weight_norm(nn.Linear(3, 4))
    assert [str(path) for path, _ in lw.tree(model).items()] == [name for name, _ in model.named_parameters()]


def test_lazy_parameters_have_no_shape_and_then_they_have() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    tree = lw.tree(model)
    assert tree["0.weight"].shape is None
    assert tree["0.weight"].ndim is None
    assert (tree["0.weight"].size, tree["0.weight"].nbytes) == (0, 0)
    assert tree["0.weight"].role == "linear.weight"
    assert "?" in tree.text()
    assert "4 leaves without a shape" not in tree.text()
    model(torch.randn(2, 3))
    assert lw.tree(model)["0.weight"].shape == (4, 3)
    assert tree["0.weight"].shape == (4, 3)


def test_meta_and_empty_tensors_never_look_tied() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert lw.tree(model).ties == []
    assert lw.tree(model.state_dict()).ties == []
    empty = torch.zeros(0)
    state = {"a.x": empty.view(0, 1), "a.y": empty[:], "b": torch.zeros(3)[3:], "c": torch.zeros(5, 0)}
    tree = lw.tree(state)
    assert tree.ties == []
    assert tree.shared_memory == []
    assert len(tree) == 4


def test_only_distinct_parameters_have_separate_gradients() -> None:
    weight = torch.randn(4, 3)
    model = nn.Module()
    model.a = nn.Parameter(weight)
    model.b = nn.Parameter(weight.t())
    tree = lw.tree(model)
    assert len(tree) == 2
    (shared,) = tree.shared_memory
    assert shared.reason == "shared memory, separate gradients"
    assert tree.counts.parameters == 24
    assert tree.counts.bytes == 48
    assert "shared memory, separate gradients: a, b" in tree.text()
    # The same memory in a state dict has no gradients, and is one tied leaf.
    (tie,) = lw.tree(model.state_dict()).ties
    assert tie.op == "transpose"


def test_frozen_parameters_over_one_memory_stay_two() -> None:
    weight = torch.randn(4)
    model = nn.ParameterList([nn.Parameter(weight, requires_grad=False), nn.Parameter(weight, requires_grad=False)])
    assert len(lw.tree(model)) == 2


def test_a_conjugate_view_is_not_the_same_numbers() -> None:
    base = torch.randn(3, dtype=torch.complex64)
    assert lw.tree({"a": base, "b": base.conj()}).ties == []


def test_an_expanded_tensor_is_a_view_of_what_it_repeats() -> None:
    base = torch.zeros(4)
    tree = lw.tree({"e": base.expand(1000, 4), "base": base})
    assert [str(path) for path in tree["base"].paths] == ["base", "e"]
    assert tree.counts.parameters == 4


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.bfloat16, ml_dtypes.bfloat16),
        (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
        (torch.float8_e5m2, ml_dtypes.float8_e5m2),
        (torch.float16, np.float16),
        (torch.int64, np.int64),
        (torch.bool, np.bool_),
        (torch.complex64, np.complex64),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_numpy_shares_memory_in_every_dtype(dtype: torch.dtype, expected: Any, shape: tuple[int, ...]) -> None:
    value = torch.ones(shape).to(dtype)
    leaf = lw.tree({"w": value})["w"]
    array = leaf.numpy()
    assert array.dtype == expected
    assert array.shape == shape
    assert (array.astype(np.complex64) == 1).all()
    leaf.write(np.zeros_like(array))
    assert not value.to(torch.complex64).any()
    assert (array.astype(np.complex64) == 0).all()
    assert leaf.dtype == str(dtype).removeprefix("torch.")


def test_numpy_of_what_has_no_values_is_refused() -> None:
    with pytest.raises(lw.Unsupported, match="meta tensor"):
        lw.tree({"w": torch.zeros(2, device="meta")})["w"].numpy()
    with pytest.raises(lw.Unsupported, match="lazy layer"):
        lw.tree(nn.LazyLinear(2))["weight"].numpy()
    with pytest.raises(lw.Unsupported, match="sparse"):
        lw.tree({"w": torch.eye(2).to_sparse()})["w"].numpy()


def test_nested_tensors_have_no_shape() -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = [
            torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=kind)
            for kind in (torch.strided, torch.jagged)
        ]
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


def test_a_write_keeps_the_parameter_and_its_version_counts() -> None:
    model = nn.Linear(3, 2)
    leaf = lw.tree(model)["weight"]
    before, version = model.weight, model.weight._version
    leaf.write(np.full((2, 3), 5, np.float32))
    assert model.weight is before
    assert model.weight._version > version
    assert model.weight.requires_grad
    leaf.write([[1, 2, 3], [4, 5, 6]])
    assert model.weight.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_a_write_that_does_not_fit_names_both_sides_and_changes_nothing() -> None:
    model = nn.Linear(3, 2)
    leaf = lw.tree(model)["weight"]
    before = model.weight.detach().clone()
    message = r"weight: cannot write float64 of shape \(2, 3\) into float32 of shape \(2, 3\); nothing was changed"
    with pytest.raises(lw.WriteError, match=message):
        leaf.write(np.zeros((2, 3)))
    with pytest.raises(lw.WriteError, match=r"shape \(3, 2\) into float32 of shape \(2, 3\)"):
        leaf.write(torch.zeros(3, 2))
    with pytest.raises(lw.WriteError, match="cannot write"):
        leaf.write("words")
    with pytest.raises(lw.WriteError, match="cannot write"):
        leaf.write([[1, 2], [3]])
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize(
    ("leaf", "value"),
    [
        (torch.zeros(2, dtype=torch.int64), [1.7, 2.2]),
        (torch.zeros(2, dtype=torch.bool), [0.5, 0]),
        (torch.zeros(2, dtype=torch.uint8), [1, 300]),
        (torch.zeros(2), [1j, 1]),
        (torch.zeros(()), None),
        (np.zeros(2, np.uint8), [1.7, 300]),
        (np.zeros(2, np.uint8), [1, 300]),
        (np.zeros(2), [1j, 1]),
        (np.zeros(2), ["x", "y"]),
        (np.zeros(2), [[1], [1, 2]]),
        (np.zeros(()), None),
        (torch.zeros(4).expand(3, 4), torch.ones(3, 4)),
        (torch.zeros(2, 2), torch.eye(2).to_sparse()),
        (torch.zeros(2), torch.zeros(2, device="meta")),
    ],
    ids=str,
)
def test_a_write_that_would_lose_something_changes_nothing(leaf: Any, value: Any) -> None:
    before = leaf.clone() if isinstance(leaf, torch.Tensor) else leaf.copy()
    with pytest.raises(lw.WriteError, match=r"^w: .*nothing was changed$"):
        lw.tree({"w": leaf})["w"].write(value)
    assert (before == leaf).all()


def test_python_numbers_are_rounded_to_the_precision_of_the_leaf() -> None:
    leaf = torch.zeros(2, dtype=torch.bfloat16)
    lw.tree({"w": leaf})["w"].write([0.1, 3])
    assert leaf.tolist() == torch.tensor([0.1, 3]).bfloat16().tolist()


def test_tensor_subclasses_are_leaves_as_they_are() -> None:
    class Marked(torch.Tensor):
        pass

    value = torch.zeros(2, 2).as_subclass(Marked)
    leaf = lw.tree({"w": value})["w"]
    assert leaf.value is value
    assert leaf.shape == (2, 2)


def test_a_tensor_that_raises_is_named_by_its_path() -> None:
    class Broken(torch.Tensor):
        @property
        def shape(self) -> Any:
            raise RuntimeError("no shape today")

    tree = lw.tree({"a": {"b": torch.zeros(2).as_subclass(Broken)}})
    with pytest.raises(lw.WalkError, match=r"a\.b: .*RuntimeError: no shape today"):
        _ = tree["a.b"].shape
    with pytest.raises(lw.WalkError, match=r"a\.b: .*RuntimeError: no shape today"):
        tree.text()


def test_a_tensor_that_refuses_every_call_is_named_by_its_path() -> None:
    class Refuses(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise TypeError("not today")

    tree = lw.tree({"a": {"b": torch.zeros(2).as_subclass(Refuses)}})
    with pytest.raises(lw.WalkError, match=r"^a\.b: .*not today"):
        tree.text()


def test_a_computed_tensor_has_no_gradient_of_its_own() -> None:
    weight = torch.randn(2, requires_grad=True)
    tree = lw.tree({"leaf": weight, "computed": weight * 2})
    assert tree["computed"].grad is None
    assert tree["leaf"].trainable is True


def test_wrappers_show_in_fetch_and_code_only() -> None:
    inner = nn.Sequential(nn.Linear(2, 2))
    wrapped = nn.DataParallel(torch.compile(inner, backend="eager"))
    tree = lw.tree(wrapped)
    path = tree.items()[0][0]
    assert str(path) == "0.weight"
    assert path.code("m") == "m.module._orig_mod[0].weight"
    assert path.fetch(wrapped) is inner[0].weight
    assert len(tree.select("*.weight")) == 1
    assert len(tree.select("module.**")) == 0
    assert tree.text().splitlines()[0].startswith("Sequential in DataParallel, OptimizedModule")
    assert tree["0"]["weight"].value is inner[0].weight


def test_a_child_that_is_only_called_module_is_not_a_wrapper() -> None:
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    assert [str(path) for path, _ in lw.tree(model).items()] == ["module.weight", "module.bias"]


def test_a_wrapper_inside_a_model_is_hidden_there() -> None:
    model = nn.Sequential(nn.DataParallel(nn.Linear(2, 2)), nn.ReLU())
    assert [str(path) for path, _ in lw.tree(model).items()] == ["0.weight", "0.bias"]
    assert "0  Linear in DataParallel" in lw.tree(model).text()


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


def test_a_scripted_module_is_walked() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert [str(path) for path, _ in lw.tree(scripted).items()] == ["0.weight", "0.bias"]
