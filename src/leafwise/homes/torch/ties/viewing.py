"""Views of tensors, and parameters that are views because of a tie; see `tied_views`."""

from typing import Any

import torch

from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.memory.memory import Op
from leafwise.homes.torch.ties.tied_views import view_names, views_of
from leafwise.homes.torch.values.values import seen_through


class TorchViewing(Viewing):
    def seen_through(self, value: torch.Tensor, op: Op) -> torch.Tensor:
        return seen_through(value, op)

    def view_names(self, cls: type) -> frozenset[str]:
        return view_names(cls)

    def view_source(self, owner: Any, name: str) -> tuple[Any, Op] | None:
        view = views_of(owner).get(name)
        if view is None or owner._parameters.get(name) is not None or view.parameters.get(view.name) is None:
            return None  # it was replaced, or its source no longer exists
        return view.parameters[view.name], view.op
