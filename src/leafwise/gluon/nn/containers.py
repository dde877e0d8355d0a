"""`Sequential` and `HybridSequential`."""

from collections.abc import Iterator
from typing import Any

import torch

from leafwise.gluon.arrays.through_torch import through_torch
from leafwise.gluon.arrays.values import ArrayValues
from leafwise.gluon.block import Block, HybridBlock


class Sequential(Block):
    """Calls its blocks one after another.

    >>> from leafwise.gluon import nn
    >>> net = nn.Sequential()
    >>> net.add(nn.Dense(8, activation="relu"), nn.Dense(1))
    >>> net
    Sequential(
      (0): Dense(-1 -> 8, Activation(relu))
      (1): Dense(-1 -> 1, linear)
    )
    >>> len(net), net[-1]
    (2, Dense(-1 -> 1, linear))
    """

    def add(self, *blocks: torch.nn.Module) -> None:
        """Adds blocks at the end; torch modules are accepted, too."""
        for block in blocks:
            if not isinstance(block, torch.nn.Module):
                raise TypeError(
                    f"{type(self).__name__}.add accepts Blocks and torch modules, not {type(block).__name__}"
                )
            self.register_child(block)

    def forward(self, x: Any, *args: Any) -> Any:
        for block in self._modules.values():
            # A torch module gets tensors, and its results become arrays again.
            is_plain = isinstance(x, ArrayValues) and not isinstance(block, Block)
            x = through_torch(block, x, *args) if is_plain else block(x, *args)  # type: ignore[arg-type, misc]
            args = ()
        return x

    def __getitem__(self, key: Any) -> Any:
        blocks = list(self._modules.values())[key]
        if not isinstance(blocks, list):
            return blocks
        part = type(self)()
        part.add(*blocks)
        return part

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())


class HybridSequential(Sequential, HybridBlock):
    """The same as a Sequential; `hybridize()` does nothing."""
