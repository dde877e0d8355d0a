"""Flat mappings with dotted keys are split into trees within limits."""

import torch

import leafwise as lw
from leafwise.core.dotted import MAX_DOTS


def test_a_key_with_absurdly_many_dots_is_left_whole() -> None:
    key = "a." * (MAX_DOTS + 1) + "b"
    tree = lw.tree({key: torch.zeros(1), "x.y": torch.zeros(2)})
    assert [path.names for path, _ in tree.items()] == [(key,), ("x", "y")]
