"""Roles and axes of layers, in one table for all frameworks, which users can extend.

A row has the role and the axes of each leaf of one type of layer. Rows are looked up along the base classes of a layer,
so a subclass of `nn.Linear` counts as a Linear unless it has its own row. The homes of the frameworks add their rows.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from leafwise.core import registry as homes
from leafwise.core.home import Axes
from leafwise.errors import ArgumentError, RuleError

if TYPE_CHECKING:
    from leafwise.core.columns import Columns

# The name of a leaf → its role and its axes. `*space` stands for any number of spatial axes, and `*features` for the
# one or more axes that a norm runs over. `*-space` are spatial axes in reverse: transposed convolutions of PyTorch go
# through their kernel from its end, those of JAX from its beginning.
Roles = Mapping[str, tuple[str, tuple[str, ...]]]

_SPACES = {"*space": ("d", "h", "w"), "*-space": ("-d", "-h", "-w")}

# "torch.nn.Linear" is the class of that name in torch.nn or below it; a name without dots may be a class of any module,
# and may be a glob. The first row that matches a class is used. Rows of users come first, the latest before the others.
_TABLE: list[tuple[str | type, Roles]] = []

# A cache: for each class its row of the table, and the answers so far. A model repeats the same few layers.
_Answers = dict[tuple[str, int | None], tuple[str | None, Axes]]
_answers_by_class: "WeakKeyDictionary[type, tuple[Roles | None, _Answers]]" = WeakKeyDictionary()


def add_roles(layer: str | type, roles: Roles) -> None:
    """Declares the roles and axes of the leaves of a layer, such as one of your own.

    `layer` is a class of modules (of PyTorch, Flax NNX or Equinox), its dotted name, or a glob over class names.
    `roles` maps the name of each leaf to its role and its axes. If several declarations match a class, the latest one
    is used.

    >>> import torch, leafwise as lw
    >>> class Scale(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.gain = torch.nn.Parameter(torch.ones(8))
    >>> lw.add_roles(Scale, {"gain": ("norm.scale", ("features",))})
    >>> lw.tree(Scale())["gain"].role
    'norm.scale'
    """
    if not isinstance(layer, str | type):
        raise ArgumentError(f"layer= takes a class or the name of a class, not {layer!r}")
    if isinstance(layer, type) and not _has_layers(layer):
        raise RuleError(
            f"cannot add roles to {layer.__module__}.{layer.__qualname__}: it is not a class of modules, such as a "
            "torch.nn.Module; give the class of the module that owns the leaves"
        )
    for name, row in roles.items():
        if [type(part) for part in row] != [str, tuple]:
            raise ArgumentError(
                f"the roles of {layer!r} need a role and a tuple of axes for {name!r}, such as "
                f"('norm.scale', ('features',)), not {row!r}"
            )
    _TABLE.insert(0, (layer, dict(roles)))
    _answers_by_class.clear()


def add_rows(rows: Iterable[tuple[str, Roles]]) -> None:
    """Adds the layers of a framework."""
    _TABLE.extend(rows)
    _answers_by_class.clear()


def _has_layers(cls: type) -> bool:
    """Whether instances of a class or of one of its subclasses, as of a mixin, are layers."""
    handled = homes.find(cls)
    if handled is not None and handled[0].roles_by_class and handled[1] == "node":
        return True
    return any(map(_has_layers, type.__subclasses__(cls)))


def role_of(cls: type, name: str, ndim: int | None) -> tuple[str | None, Axes]:
    """The role and the axes of the leaf `name` in a layer of this class."""
    roles, answers = _known(cls)
    if roles is None:
        return None, None
    answer = answers.get((name, ndim))
    if answer is None:
        answer = answers[name, ndim] = _role_in(roles, name, ndim)
    return answer


def has_inner_leaves(cls: type) -> bool:
    """Whether the row of a layer also has leaves of layers inside it, with a dot in their names."""
    return any("." in name for name in _known(cls)[0] or ())


def _known(cls: type) -> tuple[Roles | None, _Answers]:
    known = _answers_by_class.get(cls)
    if known is None:
        known = _answers_by_class[cls] = _roles_of_class(cls), {}
    return known


def _role_in(roles: Roles, name: str, ndim: int | None) -> tuple[str | None, Axes]:
    row = roles.get(name)
    if row is None:
        row = next((row for pattern, row in roles.items() if "*" in pattern and fnmatchcase(name, pattern)), None)
    if row is None:
        return None, None
    return row[0], _spread(row[1], ndim)


def _roles_of_class(cls: type) -> Roles | None:
    for base in cls.__mro__:
        for layer, roles in _TABLE:
            if _is_layer(base, layer):
                return roles
    return None


def _is_layer(cls: type, layer: str | type) -> bool:
    if isinstance(layer, type):
        return cls is layer
    package, _, name = layer.rpartition(".")
    if package and not (cls.__module__ + ".").startswith(package + "."):
        return False
    return fnmatchcase(cls.__name__, name)


def _spread(axes: tuple[str, ...], ndim: int | None) -> Axes:
    """The axes of a leaf with `ndim` dimensions; None if the table has another number of axes."""
    if ndim is None:
        return None if any(axis.startswith("*") for axis in axes) else axes
    named = [axis for axis in axes if not axis.startswith("*")]
    missing = ndim - len(named)
    if len(named) == len(axes):
        return axes if not missing else None
    for star, space in _SPACES.items():
        if star in axes:
            at = axes.index(star)
            return (*named[:at], *space[-missing:], *named[at:]) if 0 < missing <= len(space) else None
    # The axes of a norm over several axes are numbered. A flattened or expanded weight is allowed, too.
    name = next(axis for axis in axes if axis.startswith("*"))[1:]
    return (name,) if missing == 1 else tuple(f"{name}{number}" for number in range(missing))


# -- PRNG keys, whose roles name the implementation that a key is for --------------------------------------

KEY_DTYPE = "uint32"  # of the integers of a key
KEY_ROLE = "rng.key."  # the beginning of the role


def implementation_of(role: str | None) -> str:
    """The implementation that a PRNG key is for, from its role; empty if it is not known, or if it is not a key."""
    return role.removeprefix(KEY_ROLE) if role is not None and role.startswith(KEY_ROLE) else ""


def other_implementations(a: "Columns", row: int, b: "Columns", other: int) -> tuple[str, str] | None:
    """The implementations of two PRNG keys, if they differ: keys with the same integers then give other random numbers.
    None if they are the same, or if one is not known."""
    roles = a.row_role(row)[0], b.row_role(other)[0]
    first, second = map(implementation_of, roles)
    return (first, second) if first and second and first != second else None
