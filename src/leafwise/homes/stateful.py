"""Objects with `state_dict` and `load_state_dict`: schedulers, gradient scalers, data loaders that can resume."""

from typing import Any, ClassVar, Literal, NamedTuple

from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.home import Capabilities, Home, LeafKind, Visit
from leafwise.core.path import Entry
from leafwise.core.roles.sections import is_optimizer_state


class StatefulRebuilding(Rebuilding):
    def shows_copies(self, obj: Any) -> bool:
        return True

    def replace(self, owner: Any, changes: dict[str, Any]) -> Any:
        state = owner.state_dict()
        owner.load_state_dict({key: changes.get(str(key), value) for key, value in state.items()})
        return owner


class StatefulHome(Home):
    name = "an object with a state dict"
    walks = "objects with state_dict() and load_state_dict()"
    capabilities: ClassVar[Capabilities] = {Rebuilding: StatefulRebuilding}

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        has_both = callable(getattr(cls, "state_dict", None)) and callable(getattr(cls, "load_state_dict", None))
        return "node" if has_both else None

    def visit(self, obj: Any) -> Visit | None:
        state = obj.state_dict()
        if not isinstance(state, dict):
            return None
        kind: LeafKind = "state" if is_optimizer_state(state) else "rest"
        return (), [(str(key), value) for key, value in state.items()], kind

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        return Entry(name, "step", raw=_StateValue(name), spelling=f"{{root}}.state_dict()[{name!r}]")


class _StateValue(NamedTuple):
    """Gets one value of the state of an object; a class, so that paths can be pickled."""

    name: str

    def __call__(self, obj: Any) -> Any:
        return next(value for key, value in obj.state_dict().items() if str(key) == self.name)


HOME = StatefulHome()
