"""The roles of PRNG keys, which name the implementation that a key is for."""

from leafwise.core.columns import Columns

KEY_DTYPE = "uint32"  # of the integers of a key
_KEY = "rng.key."  # the beginning of the role


def other_implementations(a: Columns, row: int, b: Columns, other: int) -> tuple[str, str] | None:
    """The implementations of two PRNG keys, if they differ: keys with the same integers then give other random numbers.
    None if they are the same, or if one is not known."""
    roles = a.row_role(row)[0], b.row_role(other)[0]
    first, second = (role.removeprefix(_KEY) if role is not None and role.startswith(_KEY) else "" for role in roles)
    return (first, second) if first and second and first != second else None
