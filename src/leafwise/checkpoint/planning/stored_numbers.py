"""Plain numbers of the model that the source has as arrays: the step of a training run in JAX is a Python int at first,
and an array after the first step that was compiled."""

from typing import Any, NamedTuple

from leafwise.checkpoint.plain_values import PlainValue
from leafwise.checkpoint.planning.plan import Plan, the_source
from leafwise.core.dtypes import DTYPES
from leafwise.core.leaf import shape_text
from leafwise.core.pairing.pairing import Pairing
from leafwise.core.pairing.row_matching import match_keys
from leafwise.files.arrays.arrays import Stored
from leafwise.files.reading import reader

# The kinds of arrays whose single value is exactly a value of the type.
_KINDS: dict[type, str] = {bool: "bool", int: "int", float: "float"}


class StoredNumbers(NamedTuple):
    """`values` are the numbers by the key that the model has for them, and `misfits` say why others cannot be used."""

    values: dict[str, Any]
    misfits: dict[str, str]


def stored_numbers(plan: Plan, pairing: Pairing, wanted: dict[str, PlainValue]) -> StoredNumbers:
    """Finds the arrays of the source that are plain numbers in the model. Those that are used are no longer left."""
    stored = StoredNumbers({}, {})
    numbers = [key for key, plain in wanted.items() if type(plain.value) in _KINDS]
    if not numbers or not pairing.sources_left or plan.is_carried:
        return stored
    new_names = {pairing.new_name(pairing.source.name_of[row]): row for row in pairing.sources_left}
    columns = plan.source.columns
    used = set()
    for key, new in match_keys(numbers, [name for name in new_names if name is not None]).items():
        row, kind = new_names[new], type(wanted[key].value)
        value = columns.current(row)
        home = columns.home(value)
        spec = home.spec(value)
        if spec.shape != () or spec.dtype not in DTYPES or DTYPES[spec.dtype].kind != _KINDS[kind]:
            article = "an" if kind is int else "a"
            stored.misfits[key] = (
                f"{key} is {article} {kind.__name__} in the model but an array ({shape_text(spec.shape)} {spec.dtype}) "
                f"in {the_source(plan.source)}; make it such an array in the model"
            )
        elif not home.cannot_read(value):
            if isinstance(value, Stored):
                reader.verify_arrays([(key, value)])
            stored.values[key] = kind(home.read(value))
            used.add(row)
    pairing.sources_left = [row for row in pairing.sources_left if row not in used]
    return stored
