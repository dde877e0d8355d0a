"""Arrays behave like MXNet's, or raise an error that names the operation: values, dtypes, shapes, types, copies and
gradients of many expressions.

`record_golden.py` describes how the facts were recorded.
"""

import json
import math
import re
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import array_facts
import pytest
import torch

from leafwise_gluon import autograd, dialect, init, modes, nn, np, npx

HERE = Path(__file__).parent
GOLDEN: dict[int, dict[str, Any]] = {
    1: json.loads((HERE / "array_facts_1.golden.json").read_text("utf-8")),
    2: json.loads((HERE / "array_facts.golden.json").read_text("utf-8")),
}
GROUPS = [name for name in GOLDEN[2] if name != "MXNet"]
VERSIONS: list[dialect.Version] = [1, 2]
# The error of a refused operation names it.
NAMED = re.compile(r"the Gluon front end|ndarray|np\.|npx\.|softmax|Cannot differentiate")
# MXNet raises here, by accident: NumPy's functions of arrays that it leaves to NumPy, or of arrays beside NumPy's own;
# `np.indices` under `record()`; and the second argument of `npx.softmax`, if it is given by position.
WORKS_HERE_ONLY = re.compile(r"numpy\.|n / x|np\.indices|npx\.softmax")


@cache
def outcomes(version: dialect.Version, group: str) -> dict[str, str]:
    """The outcome of every case of a group: "equal", "both raise", "refused", "as in the other version", "works here
    only", or how it differs."""
    facts = array_facts.Facts(np, npx, autograd, nn, init)
    found = {}
    dialect.use_version(version)
    try:
        with warnings.catch_warnings(), modes.np_array(), modes.np_shape():
            warnings.simplefilter("ignore")
            for text, golden in GOLDEN[version][group].items():
                ours = facts.of(group, text)
                found[text] = outcome(golden, ours, facts.errors)
                if found[text] not in FINE and raises(golden):
                    found[text] = lenient_outcome(GOLDEN[3 - version][group][text], ours, facts.errors, text)
    finally:
        dialect.use_version(2)
    return found


def raises(golden: dict[str, Any]) -> bool:
    recorded = golden.get("recorded", {})
    return "raises" in golden or "raises" in recorded or "raises" in recorded.get("gradients", {})


def lenient_outcome(other: dict[str, Any], ours: dict[str, Any], errors: dict[str, Exception], text: str) -> str:
    """The outcome where MXNet raises: the front end may do what the other version of MXNet does."""
    found = outcome(other, ours, errors)
    if found in ("equal", "gradient refused"):
        return "as in the other version"
    return "works here only" if WORKS_HERE_ONLY.match(text) else found


def outcome(golden: dict[str, Any], ours: dict[str, Any], errors: dict[str, Exception]) -> str:
    if "raises" in golden:
        return "both raise" if "raises" in ours else f"MXNet raises {golden['raises']}, ours gives {ours}"
    unnamed = [error for error in errors.values() if not NAMED.search(str(error))]
    if "raises" in ours:
        return "refused" if not unnamed else f"refused without a name: {unnamed[0]!r}"
    if not same(golden, ours):
        return f"MXNet gives {golden}, ours {ours}"
    return recorded_outcome(golden.get("recorded", {}), ours.get("recorded", {}), unnamed)


def recorded_outcome(golden: dict[str, Any], ours: dict[str, Any], unnamed: list[Exception]) -> str:
    """The same for what happens under `record()`; a gradient that is refused is not a silent difference."""
    if "raises" in golden:
        return "equal" if "raises" in ours else f"MXNet raises under record(), ours gives {ours}"
    gradients, our_gradients = golden.get("gradients", {}), ours.get("gradients", {})
    refused = "raises" in ours or ("raises" in our_gradients and "raises" not in gradients)
    if refused:
        return "gradient refused" if not unnamed else f"gradient refused without a name: {unnamed[0]!r}"
    if golden.get("aliases") != ours.get("aliases"):
        return f"MXNet aliases under record(): {golden.get('aliases')}, ours {ours.get('aliases')}"
    if "raises" in gradients:
        return "equal" if "raises" in our_gradients else f"MXNet has no gradient, ours is {our_gradients}"
    if gradients.keys() != our_gradients.keys():
        return f"MXNet has gradients of {[*gradients]}, ours of {[*our_gradients]}"
    wrong = [name for name in gradients if not close(gradients[name], our_gradients[name])]
    return f"MXNet's gradients {gradients}, ours {our_gradients}" if wrong else "equal"


def same(golden: dict[str, Any], ours: dict[str, Any]) -> bool:
    if any(golden.get(name) != ours.get(name) for name in ("type", "dtype", "shape", "aliases")):
        return False
    items, our_items = golden.get("items", []), ours.get("items", [])
    if len(items) != len(our_items) or not all(map(same, items, our_items)):
        return False
    return close(golden.get("value"), ours.get("value"))


def close(golden: Any, ours: Any) -> bool:
    """Whether numbers are equal up to float32 rounding."""
    if isinstance(golden, list) and isinstance(ours, list):
        return len(golden) == len(ours) and all(map(close, golden, ours))
    if isinstance(golden, float) or isinstance(ours, float):
        both_nan = golden != golden and ours != ours
        return both_nan or math.isclose(golden, ours, rel_tol=1e-5, abs_tol=1e-5)
    return bool(golden == ours)


FINE = {"equal", "both raise", "refused", "gradient refused", "as in the other version", "works here only"}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_case_in_the_table_was_recorded(version: dialect.Version) -> None:
    recorded = [(group, text) for group in GROUPS for text in GOLDEN[version][group]]
    assert array_facts.cases() == recorded


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("group", GROUPS)
def test_no_expression_silently_differs_from_mxnet(group: str, version: dialect.Version) -> None:
    wrong = {text: found for text, found in outcomes(version, group).items() if found not in FINE}
    assert not wrong, "\n".join(f"{text}: {found}" for text, found in wrong.items())


@pytest.mark.parametrize("version", VERSIONS)
def test_the_docs_count_what_is_equal_and_what_is_refused(version: dialect.Version) -> None:
    counts = Counter(found for group in GROUPS for found in outcomes(version, group).values())
    page = (HERE.parent / "docs" / "gluon.md").read_text("utf-8")
    kinds = ("equal", "both raise", "as in the other version", "works here only", "refused", "gradient refused")
    row = f"| {version} | {counts.total():,} | {' | '.join(f'{counts[kind]:,}' for kind in kinds)} | 0 |"
    assert row in page, row


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_every_name_that_an_array_has_is_in_the_table() -> None:
    texts = " ".join(text for _, text in array_facts.cases())
    ours = public(np.ndarray) - {"own_context", "tensor"}
    assert not sorted(name for name in ours if f".{name}" not in texts)


def test_tensor_names_that_mxnet_does_not_have_raise_an_error_that_says_what_to_do() -> None:
    x = np.ones((2, 2))
    for name in public(torch.Tensor) - public(np.ndarray):
        with pytest.raises(AttributeError, match=rf"the Gluon front end has no ndarray\.{name}; use (x|np\.|==)"):
            getattr(x, name)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x.view(4)", r"use x\.reshape\(shape\), which copies, or x\.reshape_view\(shape\)"),
        ("x.exp()", r"use np\.exp\(x\)"),
        ("x.asscalar()", r"use x\.item\(\)"),
        ("x.numpy()", r"use x\.asnumpy\(\)"),
        ("x.data", r"use x\.tensor\.data for PyTorch's"),
        ("x.nonsense", r"no ndarray\.nonsense"),
    ],
)
def test_the_error_for_a_missing_name_says_what_to_write(code: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        eval(code, {"x": np.ones((2, 2))})


@pytest.mark.parametrize("code", ["x[[5]]", "x[np.array([2], dtype='int64')]", "x[mask]", "x.take(np.array([6]))"])
def test_indices_out_of_bounds_are_errors_although_mxnet_reads_other_memory(code: str) -> None:
    names = {"np": np, "x": np.ones((2, 3)), "mask": np.array([True, False, True], dtype="bool")}
    with pytest.raises((IndexError, RuntimeError)):
        eval(code, names)
    with pytest.raises((IndexError, RuntimeError, SyntaxError)):
        exec(f"{code} = 7", names)
    assert names["x"].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_rows_of_a_weight_in_another_memory_format_can_be_written() -> None:
    weight = torch.nn.Parameter(torch.zeros(3, 2).T)
    layer = nn.Dense(2, in_units=3)
    layer.initialize()
    layer.weight.tensor.data = weight.data
    layer.weight.data()[0] = 5
    layer.weight.data()[1][2] = 7
    assert layer.weight.tensor.tolist() == [[5, 5, 5], [0, 0, 7]]


def test_gradients_flow_through_copies() -> None:
    x = np.array([[1, 2], [3, 4]])
    x.attach_grad()
    with autograd.record():
        y = (x.T.reshape(-1)[::-1] * np.arange(4)).sum() + x[:, 0].sum() + x.flatten().squeeze()[1]
    y.backward()
    assert x.grad.tolist() == [[4, 2], [3, 0]]


def test_backward_writes_into_the_gradient_array_that_the_user_has() -> None:
    x = np.ones(2)
    x.attach_grad()
    held = x.grad
    for factor in (3, 5):
        with autograd.record():
            y = (x * factor).sum()
        y.backward()
        assert held.tolist() == [factor, factor]
    with pytest.raises(RuntimeError):
        y.backward()  # the graph is gone
    assert x.grad.tolist() == [5, 5]


def test_pytorch_functions_and_modules_get_tensors() -> None:
    x = np.ones((2, 3))
    assert isinstance(torch.nn.functional.layer_norm(x, (3,)), np.ndarray)
    assert isinstance(torch.nn.functional.softsign(x), np.ndarray)
    x[0] = -1
    assert torch.nn.functional.relu(x, inplace=True) is x
    assert x.tolist() == [[0, 0, 0], [1, 1, 1]]
    net = nn.Sequential()
    net.add(torch.nn.Flatten(), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2), nn.Dense(1))
    net.initialize()
    assert net(np.ones((2, 3, 1))).shape == (2, 1)
    net = nn.Sequential()
    net.add(torch.nn.GRU(3, 4, batch_first=True))
    output, state = net(np.ones((2, 5, 3)))
    assert (type(output), type(state), state.shape) == (np.ndarray, np.ndarray, (1, 2, 4))
    assert x.tensor.data_ptr() == x.tensor.view(-1).data_ptr()
    assert type(x.tensor) is torch.Tensor
