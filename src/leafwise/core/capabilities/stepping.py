"""Optimizers: the parameters that they step, and the state that they keep for each."""

from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.core.home import Home, capability_or_none
from leafwise.errors import Unsupported

# Children of an optimizer's node besides `param_groups` and `state`: state that belongs to no parameter; and, for an
# optimizer that is shown as its own state dict, the names of its parameters, in the order of their numbers there.
GLOBAL_STATE = "global_state"
PARAMETERS = "parameters"


class Stepping(Capability):
    """For a home of optimizers. Its `visitor` shows each optimizer as a node with these children, so that state is
    saved and restored by the names of parameters:

        param_groups     a node for each group: its options as plain values, and `params`, the paths of its
                         parameters as a list of strings
        state            below it, the state of each parameter under the path that `path_of` gives for the parameter
        global_state     state that belongs to no parameter, if there is any

    The parameters themselves are not listed: they are leaves of the model. `homes.torch.training.optimizers` is an
    example.
    """

    action = "list the parameters of an optimizer"

    def is_optimizer(self, obj: Any) -> bool:
        """Whether a node steps parameters and keeps state for each. Depends only on the type of the node."""
        return False

    def why_unknown(self, obj: Any) -> str:
        """Why the parameters of an object that may be an optimizer are not known; empty if it is none, or they are."""
        return ""

    def held_by(self, optimizer: Any) -> list[tuple[str, Any]]:
        """The arrays that an optimizer steps, each with a description of its place in the optimizer."""
        raise self.missing("list the parameters of an optimizer")

    def reached(self, optimizer: Any, value: Any) -> Any:
        """State with the shape of the array that is zero for elements that no step changed; None if there is none."""
        return None

    def exchange(self, optimizer: Any, new: dict[int, Any]) -> None:
        """Replaces parameters of an optimizer; `new` maps the `id` of each old parameter to the new one."""
        raise self.missing("exchange the parameters of an optimizer")

    def like_parameter(self, key: str) -> bool:
        """Whether the state of this name has the shape of its parameter."""
        return False

    def kind(self, optimizer: Any) -> str:
        """The name of the kind of an optimizer, as files record it."""
        return type(optimizer).__qualname__

    def state_misfit(self, optimizer: Any, names: frozenset[str]) -> str | None:
        """Why an optimizer cannot have kept state of these names for a parameter; empty if it can, None if that is not
        known."""
        return None

    def needed(self, optimizer: Any, group: int, options: dict[str, Any]) -> set[str]:
        """The names of the state that the options of a group need; `options` are those that it is about to get."""
        return set()

    def has_unused_gradients(self, optimizer: Any) -> bool:
        """Whether parameters are known to have gradients that no step has used yet."""
        return False

    def joined_state(self, optimizer: Any) -> str:
        """The name of a state that joins all parameters of an optimizer in their order; empty if there is none."""
        return ""

    def sharded_like(self, optimizer: Any, place: tuple[int, int], key: str, shape: tuple[int, ...]) -> Any:
        """The array whose sharding the state of a parameter, given by group number and position, gets when it is
        restored; None if every process has all of it. Raises `Unsupported` if that is not known."""
        return None

    def restore_state(
        self,
        optimizer: Any,
        states: dict[tuple[int, int], dict[str, Any]],
        options: dict[int, dict[str, Any]],
        whole: bool,
        global_state: dict[Any, Any],
    ) -> None:
        """Sets the state of parameters, by group number and position, and the options of groups, by group number; with
        `whole`, other options of a group are removed. `global_state` belongs to no parameter. Arrays are NumPy arrays,
        or sharded arrays of the home.
        A parameter that is not in `states` keeps its state."""
        raise self.missing("restore the state of an optimizer")

    def casts_state(self, optimizer: Any) -> bool:
        """Whether the state of a parameter has the dtype of the parameter, so that it is cast along with it."""
        return True

    def check_states(self, optimizer: Any, states: dict[tuple[int, int], dict[str, Any]]) -> None:
        """Raises `Unsupported` if `restore_state` cannot set these states together. Called before anything changes."""

    def cannot_restore(self, value: Any) -> str:
        """Why an array in the state of an optimizer would not be restored as it was; empty if it would."""
        return ""

    def state_of_parts(self, optimizer: Any) -> list[Any]:
        """Arrays in the state of sharded parameters that are not sharded themselves, although they belong only to the
        part of the parameter in this process: each process has other values, and no process knows where they belong."""
        return []

    def keeps_own_state(self, optimizer: Any) -> bool:
        """Whether an optimizer keeps more than the state of its parameters and the options of groups, so that only its
        own state dict is complete."""
        return False

    def restore_own_state(self, optimizer: Any, state: Any) -> None:
        """Loads the own state dict of such an optimizer. Arrays are NumPy arrays."""
        raise self.missing("restore the state of an optimizer")


def check_known(home: Home, optimizer: Any) -> None:
    """Raises if the parameters of an optimizer cannot be known."""
    stepping = capability_or_none(home, Stepping)
    if stepping is not None and (why := stepping.why_unknown(optimizer)):
        raise Unsupported(home.name, stepping.action, why)


def is_optimizer(home: Home, obj: Any) -> bool:
    """Whether an object of a home is an optimizer; called for every node."""
    stepping = capability_or_none(home, Stepping)
    return stepping is not None and stepping.is_optimizer(obj)
