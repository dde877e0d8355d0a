"""The arrays of many rows at once are those that each row has now."""

from typing import Any

import numpy as np
import torch
from torch import nn

import leafwise as lw


def assert_current(tree: lw.Tree) -> list[Any]:
    columns = tree.columns
    arrays = columns.current_arrays(tree.rows)
    assert [id(array) for array in arrays] == [id(columns.current(row)) for row in tree.rows]
    assert [id(array) for array in columns.current_arrays(list(tree.rows)[1:])] == list(map(id, arrays[1:]))
    return arrays


def test_parameters_and_buffers_that_were_replaced_are_found() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    tree = lw.tree(net)
    assert_current(tree)
    net[0].weight = nn.Parameter(torch.ones(3, 2))
    net[1].running_mean = torch.ones(3)
    arrays = assert_current(tree)
    assert arrays[0] is net[0].weight
    assert any(array is net[1].running_mean for array in arrays)


def test_a_parameter_that_was_removed_is_the_one_that_the_walk_found() -> None:
    net = nn.Linear(2, 3)
    tree = lw.tree(net)
    bias = net.bias
    net.bias = None
    assert assert_current(tree)[1] is bias


def test_containers_of_modules_and_arrays_are_mixed() -> None:
    source = {"net": nn.Linear(2, 2), "x": np.ones(3), "y": [torch.ones(2)]}
    tree = lw.tree(source)
    source["net"].weight = nn.Parameter(torch.zeros(2, 2))
    assert any(array is source["net"].weight for array in assert_current(tree))
    plain = {"a": torch.ones(2), "b": torch.ones(3)}
    assert_current(lw.tree(plain))


def test_the_parameters_of_one_list_are_those_that_it_has_now() -> None:
    listed = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(4)])
    tree = lw.tree(listed)
    assert_current(tree)
    listed[1] = nn.Parameter(torch.zeros(2))
    assert assert_current(tree)[1] is listed[1]
    listed.append(nn.Parameter(torch.ones(3)))  # after the walk
    assert len(assert_current(tree)) == 4
    removed = listed[2]
    del listed._parameters["4"]
    listed._parameters["2"] = None
    assert assert_current(tree)[2] is removed
    del listed._parameters["2"]
    listed._parameters["2"] = nn.Parameter(torch.ones(2))  # now the last one
    assert assert_current(tree)[2] is listed._parameters["2"]
