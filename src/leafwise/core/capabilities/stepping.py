"""Optimizers: what they step, and the state that they keep for it."""

from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.core.home import Home, offer

# What an optimizer's node holds besides `param_groups` and `state`: state that belongs to no parameter; and, beside a
# state dict of its own making, which numbers parameters, their names in the order of the numbers.
GLOBAL_STATE = "global_state"
PARAMETERS = "parameters"


class Stepping(Capability):
    action = "list what it steps"

    def is_optimizer(self, obj: Any) -> bool:
        """Whether a node steps parameters and keeps state for each."""
        return False

    def held_by(self, optimizer: Any) -> list[tuple[str, Any]]:
        """What an optimizer steps: each array with a word for where it stands there."""
        raise NotImplementedError

    def reached(self, optimizer: Any, value: Any) -> Any:
        """What an optimizer keeps of an array, of the same shape, that is zero where no step reached it, or None."""
        return None

    def exchange(self, optimizer: Any, new: dict[int, Any]) -> None:
        """Has an optimizer step other parameters in place of those with these identities."""
        raise NotImplementedError

    def like_parameter(self, key: str) -> bool:
        """Whether the state of this name has the shape of its parameter."""
        return False

    def restore_state(
        self,
        optimizer: Any,
        states: dict[tuple[int, int], dict[str, Any]],
        options: dict[int, dict[str, Any]],
        whole: bool,
        global_state: dict[Any, Any],
    ) -> None:
        """Gives an optimizer the state of its parameters, by group and position in it, and the options of groups, by
        their numbers; where `whole`, these are all options that a group shall have. `global_state` belongs to no
        parameter. Arrays come as NumPy arrays. A parameter that is not given keeps the state that it has."""
        raise NotImplementedError

    def keeps_own_state(self, optimizer: Any) -> bool:
        """Whether an optimizer keeps more than the state of its parameters and options of groups, so that only its own
        state dict is all of it."""
        return False

    def restore_own_state(self, optimizer: Any, state: Any) -> None:
        """Gives such an optimizer back what its state dict was. Arrays come as NumPy arrays."""
        raise NotImplementedError


def is_optimizer(home: Home, obj: Any) -> bool:
    """Whether an object of a home steps parameters; asked of every node."""
    stepping = offer(home, Stepping)
    return stepping is not None and stepping.is_optimizer(obj)
