"""`lw.initialize`: values depend only on seed, path and element, and follow the declared distribution."""

import copy
import math
import pickle
import statistics
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract import toy
from tests.iterate.models import LanguageModel
from torch import nn

import leafwise as lw
from leafwise.iterate.distributions import GeneratorKey, normal, numbers, uniform, words
from leafwise.iterate.initializers import INITIALIZERS

NORMAL = [lw.Rule("**", init="normal")]


def net(*widths: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(a, b) for a, b in pairwise(widths)])


# -- the numbers -----------------------------------------------------------------------------------------


def test_any_stretch_of_words_can_be_drawn_by_itself() -> None:
    key = GeneratorKey.of(0, "layers.0.weight")
    whole = words(key, 0, 1000)
    for start in (0, 1, 7, 8, 9, 500, 993):
        assert np.array_equal(words(key, start, 7), whole[start : start + 7])


def test_the_words_are_those_of_philox() -> None:
    """Philox4x64-10, implemented from its published definition."""
    key = GeneratorKey.of(3, "a.b")
    mask = (1 << 64) - 1
    blocks = []
    for block in range(1, 4):
        c, k = [block, 0, 0, 0], list(key)
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = [(b >> 64) ^ c[1] ^ k[0], b & mask, (a >> 64) ^ c[3] ^ k[1], a & mask]
            k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
        blocks += c
    assert np.array_equal(np.array(blocks, "<u8").view("<i4"), words(key, 0, 24))


@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 64), (5, 3), (7, 1000), (2**33 + 3, 100)])
def test_the_words_that_a_gpu_makes_for_itself_are_the_same(first: int, count: int) -> None:
    from leafwise.homes.torch.values.filling import philox_words

    for seed in range(5):
        key = GeneratorKey.of(seed, "x")
        assert np.array_equal(philox_words(key, first, count, torch.device("cpu")).numpy(), words(key, first, count))


def test_normal_numbers_are_the_inverse_of_the_distribution_function() -> None:
    some = np.concatenate([words(GeneratorKey.of(0, "x"), 0, 5000), np.array([-(2**31), 2**31 - 1, 0, -1], np.int32)])
    exact = statistics.NormalDist()
    expected = [exact.inv_cdf((int(word) + 0.5) / 2**32 + 0.5) for word in some]
    assert np.allclose(numbers(normal(0, 1), some), expected, rtol=1e-14, atol=0)


def test_a_cut_normal_stays_inside_and_is_spread_as_it_should() -> None:
    x = numbers(normal(0, 1, cut=2.0), words(GeneratorKey.of(0, "x"), 0, 200_000))
    assert abs(x).max() <= 2
    mass = math.erf(2 / math.sqrt(2))
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    assert x.std() == pytest.approx(math.sqrt(1 - 4 * density / mass), rel=0.01)


@pytest.mark.parametrize("draw", [uniform(-1, 1), normal(0, 1)], ids=["uniform", "normal"])
def test_numbers_pass_a_test_of_their_distribution(draw: Any) -> None:
    """The Kolmogorov-Smirnov test: the largest distance between the empirical and the true distribution function."""
    count = 100_000
    x = np.sort(numbers(draw, words(GeneratorKey.of(1, "y"), 0, count)))
    true = (x + 1) / 2 if draw.shape == "uniform" else np.array([statistics.NormalDist().cdf(one) for one in x])
    distance = np.abs(true - (np.arange(count) + 0.5) / count).max()
    assert distance * math.sqrt(count) < 1.95  # one sample in a thousand exceeds this


def test_different_leaves_get_different_numbers() -> None:
    model = lw.initialize(net(64, 64, 64), NORMAL)
    a, b = model[0].weight.flatten(), model[1].weight.flatten()
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.06
    assert not torch.equal(
        lw.initialize(net(8, 8), NORMAL, seed=1)[0].weight, lw.initialize(net(8, 8), NORMAL)[0].weight
    )


# -- a function of seed, path and element ----------------------------------------------------------------


def test_values_are_the_same_every_time() -> None:
    torch.manual_seed(0)
    first = lw.initialize(net(4, 8, 2))
    torch.manual_seed(1)
    second = lw.initialize(net(4, 8, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_adding_a_layer_changes_no_other() -> None:
    short, long = lw.initialize(net(4, 8, 2)), lw.initialize(net(4, 8, 2, 3))
    assert torch.equal(short[0].weight, long[0].weight)
    assert torch.equal(short[1].bias, long[1].bias)


def test_order_does_not_matter() -> None:
    def build(names: str) -> nn.ModuleDict:
        return lw.initialize(nn.ModuleDict({name: nn.Linear(3, 3) for name in names}))

    one, other = build("abc"), build("cab")
    assert all(torch.equal(one[name].weight, other[name].weight) for name in "abc")


def test_rows_do_not_depend_on_how_many_there_are() -> None:
    small, large = lw.initialize(net(8, 4), NORMAL), lw.initialize(net(8, 400), NORMAL)
    assert torch.equal(small[0].weight, large[0].weight[:4])


def test_large_leaves_are_drawn_piece_by_piece_and_come_out_the_same() -> None:
    model = lw.initialize(nn.Embedding(5000, 130), NORMAL)
    expected = numbers(normal(0, 1), words(GeneratorKey.of(0, "weight"), 0, 5000 * 130)).reshape(5000, 130)
    assert np.array_equal(model.weight.detach().numpy(), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_gets_the_same_numbers_rounded(dtype: torch.dtype) -> None:
    model = lw.initialize(nn.Linear(50, 40, dtype=dtype), NORMAL)
    exact = numbers(normal(0, 1), words(GeneratorKey.of(0, "weight"), 0, 2000)).reshape(40, 50)
    assert torch.equal(model.weight.detach(), torch.from_numpy(exact).to(dtype))


def test_another_home_gets_the_same_values() -> None:
    class WithRoles(toy.ToyHome):
        """A home with transposed matrices and other names, like Flax."""

        def role(self, owner: Any, name: str, value: Any, lineage: Any) -> Any:
            return ("linear.weight", ("in", "out")) if name == "kernel" else ("bias", ("out",))

    with toy.registered(WithRoles()) as ours:
        model = toy.Model(fc=toy.Model(kernel=toy.matrix(4, 3), bias=toy.matrix(1, 3)))
        rules = [lw.Rule("**", init="normal"), lw.Rule("**.kernel", init="kaiming_normal")]
        made = lw.initialize(model, rules)
        assert made is not model
        theirs = ours.read(made.fc.kernel)
    torch_rules = [lw.Rule("**", init="normal"), lw.Rule("**.weight", init="kaiming_normal")]
    pytorch = lw.initialize(nn.ModuleDict({"fc": nn.Linear(4, 3)}), torch_rules)
    assert np.array_equal(theirs.T.astype(np.float32), pytorch["fc"].weight.detach().numpy())


def test_a_transposed_layer_of_pytorch_has_the_same_numbers_turned() -> None:
    from transformers.pytorch_utils import Conv1D

    rules = [lw.Rule("**.weight", init="xavier_uniform"), lw.Rule("**.bias", init="zeros")]
    turned = lw.initialize(nn.ModuleDict({"fc": Conv1D(3, 5)}), rules)
    plain = lw.initialize(nn.ModuleDict({"fc": nn.Linear(5, 3)}), rules)
    assert torch.equal(turned["fc"].weight.T, plain["fc"].weight)


# -- the defaults of PyTorch's layers --------------------------------------------------------------------

_LAYERS: dict[str, Any] = {
    "linear": lambda: nn.Linear(40, 60),
    "conv1d": lambda: nn.Conv1d(20, 30, 5, groups=5),
    "conv2d": lambda: nn.Conv2d(20, 30, 3),
    "conv3d": lambda: nn.Conv3d(6, 10, 3),
    "transposed": lambda: nn.ConvTranspose2d(20, 30, 3, groups=2),
    "bilinear": lambda: nn.Bilinear(15, 20, 10),
    "embedding": lambda: nn.Embedding(90, 40, padding_idx=3),
    "bag": lambda: nn.EmbeddingBag(90, 40),
    "layer norm": lambda: nn.LayerNorm([8, 9]),
    "group norm": lambda: nn.GroupNorm(2, 8),
    "rms norm": lambda: nn.RMSNorm(8),
    "batch norm": lambda: nn.BatchNorm2d(8),
    "instance norm": lambda: nn.InstanceNorm1d(8, affine=True, track_running_stats=True),
    "rnn": lambda: nn.RNN(30, 40, 2),
    "gru": lambda: nn.GRU(30, 40, bidirectional=True),
    "lstm": lambda: nn.LSTM(30, 40, proj_size=20),
    "cell": lambda: nn.LSTMCell(30, 40),
    "attention": lambda: nn.MultiheadAttention(40, 4, add_bias_kv=True),
    "cross attention": lambda: nn.MultiheadAttention(40, 4, kdim=30, vdim=20),
    "prelu": lambda: nn.PReLU(5, init=0.5),
    "prelu of one": lambda: nn.PReLU(5, init=1),
    "transformer layer": lambda: nn.TransformerEncoderLayer(16, 4, 64),
    "transformer": lambda: nn.Transformer(16, 4, 1, 1, 64, batch_first=True),
}


@pytest.mark.parametrize("layer", _LAYERS)
def test_the_default_is_the_distribution_of_the_layers_own_reset(layer: str) -> None:
    torch.manual_seed(0)
    theirs = _LAYERS[layer]()
    ours = copy.deepcopy(theirs)
    for leaf in lw.tree(ours):
        leaf.value.data.fill_(7)
    assert lw.initialize(ours) is ours
    resets = {path: leaf.value.detach() for path, leaf in lw.tree(theirs).items()}
    is_random = any(reset.unique().numel() > 1 for reset in resets.values())
    others = [lw.tree(_LAYERS[layer]()) for _ in range(40 * is_random)]
    drawn = [lw.tree(lw.initialize(_LAYERS[layer](), seed=n)) for n in range(40 * is_random)]
    for path, leaf in lw.tree(ours).items():
        mine, reset = leaf.value.detach(), resets[path]
        if reset.unique().numel() == 1:
            assert torch.equal(mine, reset), path
            continue
        # The std of several layers together must match; the bounds of a uniform distribution, too.
        many = torch.stack([tree[path].value.detach() for tree in others])
        own = torch.stack([tree[path].value.detach() for tree in drawn])
        assert own.std().item() == pytest.approx(many.std().item(), rel=0.15), path
        kurtosis = ((own / own.std()) ** 4).mean().item()
        assert (kurtosis < 2.4) == (((many / many.std()) ** 4).mean().item() < 2.4), path
        if kurtosis < 2.4:
            assert own.abs().max().item() == pytest.approx(many.abs().max().item(), rel=0.05), path


def test_a_row_of_padding_is_zero() -> None:
    table = lw.initialize(nn.Embedding(9, 4, padding_idx=-1))
    assert table.weight[-1].tolist() == [0, 0, 0, 0]
    assert (table.weight[:-1] != 0).all()


def test_a_layer_that_is_not_pytorchs_own_needs_a_rule() -> None:
    class RMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4))  # perhaps it adds one

    class Linear(nn.Linear):
        def reset_parameters(self) -> None:
            nn.init.zeros_(self.weight)

    model = nn.Sequential(RMSNorm(), nn.LayerNorm(4), Linear(4, 4))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(lw.RuleError, match=r"0\.weight \(RMSNorm, norm\.scale\), 2\.weight \(Linear, linear\.weight\)"):
        lw.initialize(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    lw.initialize(model, [lw.Rule("0.weight", init="zeros"), lw.Rule("2.*", init=None)])


# -- initializers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "theirs"),
    [
        ({"init": "xavier_uniform", "gain": 2.0}, lambda w: nn.init.xavier_uniform_(w, gain=2.0)),
        ({"init": "xavier_normal"}, nn.init.xavier_normal_),
        ({"init": "kaiming_uniform"}, lambda w: nn.init.kaiming_uniform_(w, nonlinearity="relu")),
        ({"init": "kaiming_normal", "mode": "fan_out"}, lambda w: nn.init.kaiming_normal_(w, 0, "fan_out", "relu")),
        ({"init": "kaiming_normal", "nonlinearity": "tanh"}, lambda w: nn.init.kaiming_normal_(w, nonlinearity="tanh")),
        (
            {"init": "kaiming_normal", "nonlinearity": "leaky_relu", "slope": 0.3},
            lambda w: nn.init.kaiming_normal_(w, a=0.3, nonlinearity="leaky_relu"),
        ),
        ({"init": "lecun_normal"}, lambda w: nn.init.kaiming_normal_(w, nonlinearity="linear")),
        ({"init": "lecun_uniform"}, lambda w: nn.init.kaiming_uniform_(w, nonlinearity="linear")),
        ({"init": "truncated_normal", "std": 0.02}, lambda w: nn.init.trunc_normal_(w, std=0.02, a=-0.04, b=0.04)),
        ({"init": "normal", "mean": 1.0, "std": 0.5}, lambda w: nn.init.normal_(w, 1.0, 0.5)),
        ({"init": "uniform", "low": 1.0, "high": 3.0}, lambda w: nn.init.uniform_(w, 1.0, 3.0)),
        ({"init": "constant", "value": 3.0}, lambda w: nn.init.constant_(w, 3.0)),
    ],
)
@pytest.mark.parametrize("make", [lambda: nn.Linear(300, 200), lambda: nn.Conv2d(30, 40, 5)], ids=["linear", "conv"])
def test_values_are_as_wide_as_pytorchs_own(rule: dict[str, Any], theirs: Any, make: Any) -> None:
    torch.manual_seed(0)
    expected = theirs(make().weight.detach().clone())
    found = lw.initialize(make(), [lw.Rule("weight", **rule)]).weight.detach()
    assert found.mean().item() == pytest.approx(expected.mean().item(), abs=0.02)
    assert found.std().item() == pytest.approx(expected.std().item(), rel=0.02)
    assert found.max().item() == pytest.approx(expected.max().item(), rel=0.25)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_orthogonal_weights_are_orthogonal(shape: tuple[int, int]) -> None:
    w = lw.initialize(nn.Linear(*shape, dtype=torch.float64), [lw.Rule("weight", init="orthogonal", gain=2.0)]).weight
    small = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    assert torch.allclose(small, 4 * torch.eye(min(shape), dtype=torch.float64))


def test_a_callable_sees_the_leaf_and_its_owners_other_leaves() -> None:
    seen = {}

    def init(leaf: lw.Leaf, others: Any) -> Any:
        seen[str(leaf.path)] = (leaf.shape, sorted(others), others["weight"].shape)
        return np.arange(leaf.size)

    model = lw.initialize(net(4, 3), [lw.Rule("0.bias", init=init)])
    assert seen == {"0.bias": ((3,), ["weight"], (3, 4))}
    assert model[0].bias.tolist() == [0, 1, 2]


def test_a_callable_may_return_a_number_a_tensor_or_options() -> None:
    rules = [
        lw.Rule("0.weight", init=lambda leaf, others: torch.full(leaf.shape, 2.0)),
        lw.Rule("0.bias", init=lambda leaf, others: 3.0),
        lw.Rule("1.weight", init=lambda leaf, others: {"init": "constant", "value": 4.0}),
    ]
    model = lw.initialize(net(2, 2, 2), rules)
    assert [model[0].weight[0, 0].item(), model[0].bias[0].item(), model[1].weight[0, 0].item()] == [2, 3, 4]


def test_a_later_rule_replaces_an_initializer_or_changes_its_options() -> None:
    rules = [lw.Rule("**", init="normal", std=5.0), lw.Rule("**.weight", std=0.01), lw.Rule("0.bias", init="ones")]
    model = lw.initialize(net(30, 30), rules)
    assert model[0].weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert model[0].bias.tolist() == [1] * 30


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lw.Rule("0.*", init="kaiming_normal"), r"0\.bias by Rule\('0\.\*', init='kaiming_normal'\).*axes are out"),
        (lw.Rule("1.weight", init="xavier_uniform"), r"1\.weight by .*axes are vocab, features"),
        (lw.Rule("token", init="lecun_normal"), r"token by .*its axes are not known"),
        (
            lw.Rule("**", init="kaming_normal"),
            r"unknown initializer 'kaming_normal'; nothing was changed; did you mean 'kaiming_normal'\?$",
        ),
        (
            lw.Rule("**", init="normal", gain=1.0),
            "'normal' takes no option 'gain'; nothing was changed; its options are: mean, std",
        ),
        (lw.Rule("**", init="constant"), "missing 1 required positional argument: 'value'"),
        (
            lw.Rule("0.weight", init="kaiming_normal", mode="fan"),
            "mode= takes 'fan_in', 'fan_out' or 'fan_avg', not 'fan'",
        ),
        (lw.Rule("0.weight", init="kaiming_normal", nonlinearity="gelu"), "nonlinearity= takes one of"),
        (lw.Rule("0.bias", init="orthogonal"), "at least two axes"),
        (lw.Rule("token", std=0.1), r"token: Rule\('token', std=0.1\) has no init=, and neither"),
        (lw.Rule("9.*", init="zeros"), "matches nothing"),
        (lw.Rule("count", init="normal"), "random numbers do not fit into int64"),
        (lw.Rule("count", init="constant", value=0.5), "0.5 does not fit into int64"),
        (lw.Rule("0.bias", init="constant", value="x"), "0.bias by .*must be numbers"),
        (lw.Rule("0.bias", init="normal", std=None), "must be numbers"),
        (lw.Rule("0.bias", init="normal", std="0.02"), "must be numbers"),
        (lw.Rule("0.bias", init="normal", std=math.nan), "must be finite"),
        (lw.Rule("0.bias", init="normal", std=-1.0), "the std or width must not be negative"),
        (lw.Rule("0.bias", init="uniform", low=1.0, high=0.0), "the std or width must not be negative"),
        (lw.Rule("0.weight", init="orthogonal", gain="a"), "must be numbers"),
        (lw.Rule("0.bias", std=0.1), "the default of the layer takes no option 'std'"),
        (lw.Rule("0.bias", init=["zeros"]), "unknown initializer"),
    ],
)
def test_what_does_not_fit_is_an_error_naming_path_and_rule(rule: lw.Rule, message: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Embedding(5, 4))
    model.token = nn.Parameter(torch.zeros(1, 4))
    model.register_buffer("count", torch.zeros((), dtype=torch.int64))
    before = copy.deepcopy(model.state_dict())
    base = [] if rule.where == "token" else [lw.Rule("token", init="zeros")]
    with pytest.raises(lw.RuleError, match=message):
        lw.initialize(model, [*base, rule])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (lambda leaf, others: torch.ones(3), r"returned the shape \(3,\), but the leaf has \(4,\)"),
        (lambda leaf, others: {"std": 1.0}, "without 'init'"),
        (lambda leaf, others: None, "must return numbers, not"),
        (lambda leaf, others: "zeros", "must return numbers, not"),
        (lambda leaf, others: torch.ones(4) * 1j, "complex numbers do not fit"),
        (nn.init.zeros_, "the callable raised TypeError"),
    ],
)
def test_what_a_callable_does_wrong_is_an_error_with_the_path(init: Any, message: str) -> None:
    with pytest.raises(lw.RuleError, match=f"1.bias by .*{message}.*the leaves before it were initialized"):
        lw.initialize(net(4, 4, 4), [lw.Rule("1.bias", init=init)])


def test_callables_see_the_other_leaves_with_their_values() -> None:
    rules = [lw.Rule("0.bias", init=lambda leaf, others: others["weight"].numpy().mean(axis=1))]
    for model in (net(4, 4), net(4, 4).to("meta"), nn.Sequential(nn.LazyLinear(4))):
        model = lw.initialize(model, rules)
        model(torch.ones(1, 4))
        assert torch.allclose(model[0].bias, model[0].weight.mean(1))


@pytest.mark.parametrize(
    "given", [np.arange(4, dtype=">f4"), np.arange(4, dtype=np.longdouble), torch.arange(4).bfloat16()]
)
def test_arrays_of_any_kind_of_number_are_taken(given: Any) -> None:
    model = lw.initialize(net(4, 4), [lw.Rule("0.bias", init=lambda leaf, others: given)])
    assert model[0].bias.tolist() == [0, 1, 2, 3]


def test_a_rule_for_parameters_leaves_buffers_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.register_buffer("table", torch.arange(3.0))
    lw.initialize(model, [lw.Rule("**", init="zeros")])
    assert model.table.tolist() == [0, 1, 2]
    assert model[1].running_var.tolist() == [1, 1, 1]
    assert not model[1].weight.any()
    lw.initialize(model, [lw.Rule("table", init="ones"), lw.Rule("**.running_var", init="constant", value=2.0)])
    assert (model.table.tolist(), model[1].running_var.tolist()) == ([1, 1, 1], [2, 2, 2])


def test_leaves_over_one_memory_are_an_error() -> None:
    model = net(3, 3, 3)
    model[1].weight = nn.Parameter(model[0].weight.data)
    with pytest.raises(lw.RuleError, match=r"0\.weight and 1\.weight: they share memory but are not tied"):
        lw.initialize(model)


def test_long_rows_are_drawn_piece_by_piece() -> None:
    module = nn.Module()
    module.w = nn.Parameter(torch.empty(2, 700_000))
    lw.initialize(module, [lw.Rule("w", init="normal")])
    expected = numbers(normal(0, 1), words(GeneratorKey.of(0, "w"), 0, 1_400_000)).reshape(2, 700_000)
    assert np.array_equal(module.w.detach().numpy(), expected.astype(np.float32))


def test_two_leaves_never_share_a_key() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel, self.embedding = nn.Parameter(torch.zeros(9)), nn.Parameter(torch.zeros(9))

    lw.add_roles(Both, {"kernel": ("norm.scale", ("*features",)), "embedding": ("norm.scale", ("*features",))})
    both = lw.initialize(Both(), NORMAL)
    assert not torch.equal(both.kernel, both.embedding)


# -- shared, empty and lazy leaves -----------------------------------------------------------------------


def test_names_that_disagree_are_an_error_until_one_wins() -> None:
    with pytest.raises(lw.RuleError, match=r"embed\.weight and head\.weight are one leaf"):
        lw.initialize(LanguageModel())
    model = lw.initialize(LanguageModel(), [lw.Rule("embed.weight", init="normal", std=0.02, wins=True)])
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert lw.initialize(LanguageModel(), [lw.Rule("head.weight", wins=True)]).embed.weight.abs().max() < 0.36


def test_of_several_names_any_may_decide_by_any_option() -> None:
    def build() -> nn.ModuleDict:
        model = nn.ModuleDict({f"e{n}": nn.Embedding(50, 40) for n in range(3)})
        for n in (1, 2):
            model[f"e{n}"].weight = model["e0"].weight
        return model

    rules = [lw.Rule("**", init="normal"), lw.Rule("e1.weight", std=0.02)]
    with pytest.raises(lw.RuleError, match=r"std=0\.02 for e1\.weight"):
        lw.initialize(build(), rules)
    model = lw.initialize(build(), [rules[0], lw.Rule("e1.weight", std=0.02, wins=True)])
    assert model["e0"].weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_a_model_on_meta_gets_memory_and_keeps_its_ties() -> None:
    rules = [lw.Rule("embed.weight", init="normal", std=0.02, wins=True)]
    with torch.device("meta"):
        model = LanguageModel()
    model = lw.initialize(model, rules)
    assert model.head.weight is model.embed.weight
    expected = lw.initialize(LanguageModel(), rules)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


def test_a_part_of_a_model_on_meta_keeps_ties_that_lead_out_of_it() -> None:
    with torch.device("meta"):
        model = LanguageModel()
    lw.initialize(lw.tree(model)["head"], [lw.Rule("**", init="zeros")])
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.device.type == "cpu"
    with pytest.raises(lw.RuleError, match="init=None keeps the present values, and on meta there are none"):
        lw.initialize(model, [lw.Rule("embed.weight", wins=True), lw.Rule("norm.*", init=None)])


def test_buffers_on_meta_that_no_rule_fills_raise_a_warning() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model.register_buffer("mask", torch.ones(3))
    with pytest.warns(UserWarning, match="buffers mask"):
        model = lw.initialize(model)
    assert model[1].running_var.tolist() == [1, 1]
    lw.initialize(model, [lw.Rule("mask", init="ones")])
    assert model.mask.tolist() == [1, 1, 1]


def test_a_lazy_layer_is_filled_when_its_shape_is_known() -> None:
    rules = [lw.Rule("1.weight", init="kaiming_normal")]
    model = lw.initialize(nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(2)), rules)
    model = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    model(torch.ones(1, 4))
    expected = lw.initialize(net(4, 8, 2), rules)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
    model[0].weight.data.zero_()
    model(torch.ones(1, 4))
    assert not model[0].weight.any()


def test_a_lazy_layer_is_filled_when_it_is_compiled() -> None:
    torch.compiler.reset()
    model = lw.initialize(nn.Sequential(nn.LazyLinear(4)), [lw.Rule("0.weight", init="constant", value=7.0)])
    torch.compile(model, backend="eager")(torch.ones(1, 3))
    assert model[0].weight.unique().tolist() == [7]


def test_a_lazy_layer_is_filled_once_its_callable_stops_failing() -> None:
    def fail(leaf: lw.Leaf, others: Any) -> Any:
        raise ValueError("not today")

    model = lw.initialize(nn.Sequential(nn.LazyLinear(3)), [lw.Rule("0.bias", init=fail)])
    for _ in range(2):
        with pytest.raises(lw.RuleError, match=r"0\.bias by .*not today"):
            model(torch.ones(1, 4))


def test_a_lazy_layer_that_was_loaded_meanwhile_keeps_what_it_got() -> None:
    given = net(4, 8)
    model = lw.load(lw.initialize(nn.Sequential(nn.LazyLinear(8))), given)
    model(torch.ones(1, 4))
    assert torch.equal(model[0].weight, given[0].weight)


def test_a_part_of_a_model_is_drawn_as_in_the_whole() -> None:
    whole, part = lw.initialize(net(4, 8, 2)), net(4, 8, 2)
    before = part[0].weight.clone()
    lw.initialize(lw.tree(part)["1"])
    assert torch.equal(part[1].weight, whole[1].weight)
    assert torch.equal(part[0].weight, before)


def test_other_memory_orders_get_the_same_values() -> None:
    plain, channels_last = nn.Conv2d(3, 4, 5), nn.Conv2d(3, 4, 5).to(memory_format=torch.channels_last)
    assert torch.equal(lw.initialize(plain).weight, lw.initialize(channels_last).weight)


def test_what_cannot_be_written_is_an_error() -> None:
    model = nn.Linear(3, 3)
    model.weight = nn.Parameter(torch.zeros(1, 3).expand(3, 3))
    with pytest.raises(lw.RuleError, match=r"cannot initialize weight by the default rules: it is expanded"):
        lw.initialize(model)
    with pytest.raises(lw.RuleError, match="seed= takes a whole number"):
        lw.initialize(model, seed="a")
    assert torch.equal(lw.initialize(net(2, 2), seed=np.int64(3))[0].weight, lw.initialize(net(2, 2), seed=3)[0].weight)


@pytest.mark.parametrize("name", INITIALIZERS)
def test_every_initializer_draws_the_same_in_each_precision(name: str) -> None:
    options = {"constant": {"value": 0.5}, "uniform": {"low": -1.0, "high": 2.0}}.get(name, {})
    rules = [lw.Rule("**", init=name, **options)]
    wide, narrow = (
        lw.initialize(nn.ModuleDict({"a": nn.Linear(48, 32, bias=False, dtype=dtype)}), rules)
        for dtype in (torch.float64, torch.float32)
    )
    torch.testing.assert_close(wide["a"].weight.float(), narrow["a"].weight, rtol=1e-5, atol=1e-6)


def test_the_paths_of_many_leaves_are_spelled_as_those_of_one() -> None:
    inner = nn.ModuleDict({"a*b": nn.Linear(2, 3), "layers": nn.ModuleList([nn.Linear(3, 1)])})
    columns = lw.tree(nn.Sequential(nn.DataParallel(inner), nn.ParameterDict({'"': torch.ones(2)}))).columns
    rows = range(len(columns.row_names))
    texts = columns.row_texts(rows)
    assert texts == [columns.row_text(row) for row in rows]
    assert texts[0] == '0."a*b".weight'
    assert columns.row_texts(rows[3:]) == texts[3:]


def test_named_initializers_follow_the_shape_and_role_of_each_leaf() -> None:
    """Leaves share a distribution only if their options, roles and shapes are the same."""
    net = nn.Sequential(nn.Linear(4, 500), nn.Linear(4, 500), nn.Linear(400, 50), nn.ConvTranspose2d(4, 500, 1))
    lw.initialize(
        net, [lw.Rule("**.weight", init="xavier_uniform", gain=2.0), lw.Rule("3.weight", init="lecun_normal")]
    )
    bounds = [2 * (6 / 504) ** 0.5, 2 * (6 / 504) ** 0.5, 2 * (6 / 450) ** 0.5]
    for layer, bound in zip(net, bounds, strict=False):
        assert 0.98 * bound < layer.weight.abs().max() <= bound
    assert not torch.equal(net[0].weight, net[1].weight)
    assert abs(net[3].weight.std().item() - 500**-0.5) < 0.1 * 500**-0.5  # PyTorch exchanges its fans


def test_an_interrupted_initialization_says_that_the_model_is_partly_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("leafwise.iterate.leaf_filler.LeafFiller.fill", interrupted)
    with pytest.raises(KeyboardInterrupt, match="the model is partly changed; initialize it again before you use it"):
        lw.initialize(nn.Linear(2, 2))
