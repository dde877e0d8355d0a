"""Ties between Blocks: two Blocks that share a Parameter."""

from typing import Any

import torch

from leafwise.core.capabilities.tying import DeclaredTie, Keep, Place, TiedPlaces
from leafwise.core.memory.ops import Op
from leafwise.errors import Unsupported
from leafwise.homes.torch.ties.tying import TorchTying
from leafwise.homes.torch.values.tensor_values import choose
from leafwise_gluon.block import Block


class GluonTying(TorchTying):
    """A tie is a Parameter that several Blocks use. It keeps its tensor whatever PyTorch does, so such a tie does not
    come undone, and there is nothing to declare."""

    def declared(self, objects: list[Any]) -> list[tuple[int, DeclaredTie]]:
        return []

    def cannot_tie(self, place: Place, value: Any, op: Op) -> str:
        if op != "same":
            return "belongs to a Block, which shares parameters as they are; only a plain tie is possible"
        if not isinstance(place.owner, Block) or place.name not in place.owner._reg_params:
            return "belongs to a torch module; tie the parameters of Blocks, or those of torch modules"
        return super().cannot_tie(place, value, op)

    def tie(self, root: Any, groups: list[TiedPlaces], keep: Keep | None) -> Any:
        for group in groups:
            parameters = [place.owner._reg_params[place.name] for place in group.places]
            source, *others = parameters
            targets = [(parameter.tensor, op) for parameter, op in zip(others, group.ops[1:], strict=True)]
            values = choose(source.tensor, targets, keep)
            with torch.no_grad():
                if values is not source.tensor:
                    source.tensor.copy_(values)
            for place in group.places[1:]:
                place.owner.share_parameter(place.name, source)
        return root

    def untie(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        for place in places:
            place.owner.use_own_parameter(place.name)
        return root

    def separate(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        if any(isinstance(place.owner, Block) and place.owner._scope is not None for place in places):
            reason = "a copy of a Block of MXNet 1.x would have the same names; make another Block"
            raise Unsupported(self.home.name, "untie", reason)
        return super().separate(root, objects, places)

    def keep_ties(self, root: Any, objects: list[Any], groups: list[TiedPlaces], keep: Keep | None) -> Any:
        return root

    def release_ties(self, root: Any, objects: list[Any], places: list[Place] | None) -> Any:
        return root
