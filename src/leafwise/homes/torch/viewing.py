"""Views of tensors, and leaves that are views by construction; see `views`."""

from typing import Any

import torch

from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.memory import Op
from leafwise.homes.torch.values import seen_through
from leafwise.homes.torch.views import view_names, view_source


class TorchViewing(Viewing):
    def seen_through(self, value: torch.Tensor, op: Op) -> torch.Tensor:
        return seen_through(value, op)

    def view_names(self, cls: type) -> frozenset[str]:
        return view_names(cls)

    def view_source(self, owner: Any, name: str) -> tuple[Any, Op] | None:
        return view_source(owner, name)
