"""`Sequential` and `HybridSequential`."""

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from leafwise_gluon.arrays.through_torch import through_torch
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.block import Block, HybridBlock
from leafwise_gluon.text import indented


class LayerStack(Block):
    """What Sequential and HybridSequential have in common: blocks that are called one after another."""

    def add(self, *blocks: torch.nn.Module) -> None:
        """Adds blocks at the end; torch modules are accepted, too."""
        for block in blocks:
            if not isinstance(block, torch.nn.Module):
                raise TypeError(
                    f"{type(self).__name__}.add accepts Blocks and torch modules, not {type(block).__name__}"
                )
            self.register_child(block)

    def forward(self, x: Any, *args: Any) -> Any:
        is_v1 = self._scope is not None
        if is_v1 and args:
            raise TypeError(f"{type(self).__name__} passes on one array in MXNet 1.x, not {1 + len(args)}")
        rest = list(args)
        for block in self._modules.values():
            # A torch module gets tensors, and its results become arrays again.
            is_plain = isinstance(x, ArrayValues) and not isinstance(block, Block)
            x = through_torch(block, x, *rest) if is_plain else block(x, *rest)  # type: ignore[arg-type, misc]
            rest = []
            if not is_v1 and isinstance(x, list | tuple):
                x, *rest = x
        return (x, *rest) if rest else x

    def __getitem__(self, key: Any) -> Any:
        blocks = list(self._modules.values())[key]
        if not isinstance(blocks, list):
            return blocks
        part = type(self)() if self._scope is None else type(self)(prefix=self.prefix)
        with part.child_names():
            part.add(*blocks)
        return part

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def is_container(self) -> bool:
        return True

    def __repr__(self) -> str:
        children = "\n".join(f"  ({name}): {indented(repr(child))}" for name, child in self._modules.items())
        return f"{type(self).__name__}(\n{children}\n)"


class Sequential(LayerStack):
    """Calls its blocks one after another.

    >>> from leafwise_gluon import nn
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

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        if self._modules and all(isinstance(child, HybridBlock) for child in self._modules.values()):
            name = f"{self!r}'\n" if self._scope is None else f"{self.prefix}'"
            warnings.warn(
                f"All children of this Sequential layer '{name} are HybridBlocks. Consider using HybridSequential for "
                "the best performance.",
                stacklevel=2,
            )
        super().hybridize(active, **kwargs)


class HybridSequential(LayerStack, HybridBlock):
    """Calls its blocks, all of them hybrid, one after another."""
