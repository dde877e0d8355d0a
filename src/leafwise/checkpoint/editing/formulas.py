"""Formulas such as `base + 0.5 * (tuned - base)`: sums of checkpoints, each multiplied by a number."""

import ast
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from leafwise.errors import QueryError

_EXAMPLE = '"base + 0.5 * (tuned - base)"'
AVERAGE = "average"


class _Sum(NamedTuple):
    """The factor of each checkpoint, and a number without a checkpoint."""

    factors: Mapping[str, float]
    number: float = 0.0

    def times(self, factor: float) -> "_Sum":
        number = self.number * factor if self.number else 0.0
        return _Sum({name: value * factor for name, value in self.factors.items()}, number)

    def plus(self, other: "_Sum") -> "_Sum":
        factors = dict(self.factors)
        for name, value in other.factors.items():
            factors[name] = factors.get(name, 0.0) + value
        return _Sum(factors, self.number + other.number)


def factors_of(formula: str, names: Sequence[str]) -> list[float]:
    """The factor of each checkpoint in a formula.

    >>> factors_of("base + 0.5 * (tuned - base)", ["base", "tuned"])
    [0.5, 0.5]
    >>> factors_of("average", ["a", "b", "c", "d"])
    [0.25, 0.25, 0.25, 0.25]
    """
    if not isinstance(formula, str):
        raise QueryError(f"formula= takes a string such as {_EXAMPLE}, not {formula!r}")
    if formula.strip() == AVERAGE:
        return [1 / len(names)] * len(names)
    try:
        parsed = ast.parse(formula.strip(), mode="eval").body
        total = _sum(parsed, names, formula)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, QueryError):
            raise
        raise QueryError(f"cannot read the formula {formula!r}; write one such as {_EXAMPLE}") from error
    if total.number:
        raise QueryError(
            f"cannot compute {formula!r}: it adds the number {total.number:g} to every value; every term needs a "
            "checkpoint"
        )
    if unused := [name for name in names if name not in total.factors]:
        raise QueryError(f"the formula {formula!r} does not use {', '.join(unused)}; leave it out of the sources")
    if wrong := [name for name in names if not math.isfinite(total.factors[name])]:
        raise QueryError(f"the factor of {wrong[0]} in {formula!r} is {total.factors[wrong[0]]}")
    return [total.factors[name] for name in names]


def _sum(node: ast.expr, names: Sequence[str], formula: str) -> _Sum:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return _Sum({}, float(node.value))
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise QueryError(
                f"{node.id!r} in the formula {formula!r} is not a source; the sources are {', '.join(names)}"
            )
        return _Sum({node.id: 1.0})
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        return _sum(node.operand, names, formula).times(-1.0 if isinstance(node.op, ast.USub) else 1.0)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        return _combined(_sum(node.left, names, formula), node.op, _sum(node.right, names, formula), formula)
    raise QueryError(
        f"cannot compute {ast.unparse(node)!r} in the formula {formula!r}; it may contain the names of sources, "
        "numbers, +, -, *, / and parentheses"
    )


def _combined(left: _Sum, operator: ast.operator, right: _Sum, formula: str) -> _Sum:
    if isinstance(operator, ast.Add | ast.Sub):
        return left.plus(right if isinstance(operator, ast.Add) else right.times(-1.0))
    if isinstance(operator, ast.Mult):
        if left.factors and right.factors:
            raise QueryError(f"cannot compute {formula!r}: it multiplies checkpoints with each other")
        return right.times(left.number) if right.factors else left.times(right.number)
    if right.factors or not right.number:
        raise QueryError(f"cannot compute {formula!r}: it divides by {'a checkpoint' if right.factors else 'zero'}")
    return _Sum({name: value / right.number for name, value in left.factors.items()}, left.number / right.number)
