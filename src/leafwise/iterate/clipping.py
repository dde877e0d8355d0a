"""`lw.clip`: clips gradients by norm, and returns the norms by path."""

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from numbers import Real
from typing import Any, Literal, NamedTuple

from leafwise.core.capabilities.clipping import Clipping
from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.sharding import Distributing, Team
from leafwise.core.columns import Columns
from leafwise.core.dtypes import is_inexact
from leafwise.core.leaf import Leaf
from leafwise.core.parts import check_not_gathered, check_whole_leaves, first_rows
from leafwise.core.path import listed
from leafwise.core.rebuild import with_leaves
from leafwise.core.results.result import Table
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.core.work.ranks import agreeing, combined, is_shared_out, team_of
from leafwise.errors import ArgumentError, NonFiniteError, PathError, RuleError, Unsupported, WalkError, WriteError
from leafwise.iterate.flat import Flat, flat_of
from leafwise.share.places import leaves_matching


class Norms(Table, Mapping[str, float], kind="norms"):
    """The result of `lw.clip`: the norm of each gradient before clipping, by path. Prints as a table.

    `total` is the norm of all gradients together. `nonfinite` lists the paths of gradients that are NaN or infinite.
    `clipped` is the model with the clipped gradients; in JAX, it has the new, clipped gradients.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Linear(2, 1)
    >>> net(torch.tensor([[3.0, 0.0]])).sum().backward()
    >>> norms = lw.clip(net, 1.0)
    >>> norms["weight"], round(norms.total, 4), norms.nonfinite
    (3.0, 3.1623, ())
    """

    def __init__(self, t: Tree, leaves: list[int], norms: list[float], clipped: Any) -> None:
        self._tree, self._leaves, self._norms = t, leaves, norms
        self.clipped = clipped
        self.total = math.hypot(*norms)
        self.nonfinite: tuple[str, ...] = ()
        if not math.isfinite(self.total):
            wrong = [leaf for leaf, norm in zip(leaves, norms, strict=True) if not math.isfinite(norm)]
            self.nonfinite = tuple(self._keys(wrong))

    def _keys(self, leaves: list[int]) -> list[str]:
        """The paths of leaves in this tree, which may be a part without their first names."""
        columns = self._tree.columns
        if not columns.ties:
            return columns.keys(leaves)
        row_of = {columns.ties.get(row, row): row for row in first_rows(self._tree)}
        return columns.keys([row_of.get(leaf, leaf) for leaf in leaves])

    @cached_property
    def _by_path(self) -> dict[str, float]:  # made when first needed: there may be thousands of paths
        return dict(zip(self._keys(self._leaves), self._norms, strict=True))

    def __getitem__(self, path: str) -> float:
        norm = self._by_path.get(str(path))
        if norm is not None:
            return norm
        leaf = self._tree[path]  # another name of the leaf; raises if there is none
        if not isinstance(leaf, Leaf) or leaf.number not in self._leaves:
            raise PathError(f'"{path}" had no gradient')
        return self._norms[self._leaves.index(leaf.number)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_path)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __len__(self) -> int:
        return len(self._leaves)


def clip(
    model: Any, max_norm: float, where: Any = None, *, per: Literal["tree", "leaf"] = "tree", strict: bool = True
) -> Norms:
    """Clips gradients by norm. Returns the norms before clipping, by path.

    `per="tree"` limits the norm of all gradients together to `max_norm`; `per="leaf"` limits the norm of each gradient.
    With `where`, only the leaves that match are clipped. If `where` is a list of queries, the leaves of each query are
    clipped together. A tied leaf counts once.

    If gradients are NaN or infinite, this raises a `NonFiniteError` that lists them. With `strict=False`, they are
    listed in the result instead, and gradients whose common norm is not finite are not scaled.

    If the model is sharded over several processes, every process must call this. The norms are those of the whole
    gradients, and each process scales its own parts.

    `model` may also be a `Flat`. In JAX, pass a tree of gradients instead of a model: the result has the clipped
    gradients in `.clipped`.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Linear(2, 1)
    >>> net(torch.tensor([[3.0, 0.0]])).sum().backward()
    >>> norms = lw.clip(net, 1.0)
    >>> dict(norms), round(net.weight.grad.norm().item(), 4)
    ({'weight': 3.0, 'bias': 1.0}, 0.9487)
    """
    limit: Any = max_norm
    if not isinstance(limit, Real) or not float(limit) > 0:
        raise RuleError(f"max_norm= takes a number above 0, not {max_norm!r}")
    if _is_mode(where) or not _is_mode(per):
        raise ArgumentError(_new_spelling(where, per))
    queries = list(where) if isinstance(where, list | tuple) else [where]
    if not queries:
        raise RuleError(
            "where= is an empty list; give at least one query, or leave it out to clip all gradients together"
        )
    gradients = _gradients(model, _Limit(max_norm, None if where is None else queries, per))
    together = gradients.clip_together(max_norm) if where is None and per == "tree" else None
    if together is not None and math.isfinite(math.hypot(*together)):
        return Norms(gradients.tree, gradients.leaves, together, gradients.holder)
    each = gradients.norms()
    norms = Norms(gradients.tree, gradients.leaves, each, gradients.holder)
    if norms.nonfinite and strict:
        names = listed(norms.nonfinite)
        raise NonFiniteError(f"the gradients of {names} are not finite; nothing was changed", norms.nonfinite)
    factors = _factors(gradients, each)
    if factors is not None:
        norms.clipped = gradients.scale(factors)
    return norms


def _is_mode(value: Any) -> bool:
    return isinstance(value, str) and value in ("tree", "leaf")


def _new_spelling(where: Any, per: Any) -> str:
    """The message for queries given as `per=`, and for "tree" or "leaf" given as the third argument."""
    if _is_mode(where):
        return f'where= takes a query, not {where!r}; write per="{where}"'
    return f'per= takes "tree" or "leaf", not {per!r}; pass queries as where={per!r}'


class _Limit(NamedTuple):
    """What to limit, and to what: all gradients, or those of each query."""

    max_norm: float
    queries: Sequence[Any] | None
    per: str


def _gradients(model: Any, limit: _Limit) -> "_Gradients":
    """The gradients of a model. Those of a flat model are read from its vectors, if all of them are still there."""
    if isinstance(model, Flat):
        if all(part.packed.is_intact() for part in model.parts):
            return _FlatGradients(model, limit)
        model = model.model
    with opened(model, "clip", live=True) as t:
        check_not_gathered(t, "clip the gradients of")
        check_whole_leaves(t, "clip")
        # If the tree was walked for this call, its arrays are the current ones.
        array_at = t.columns.current if t is model else t.columns.row_values.__getitem__
        if (team := team_of(t)) is not None:
            with agreeing(t, "clip", team) as rows:
                sharded = _ShardedGradients(t, array_at, limit, team)
                rows += sharded.facts()
            return sharded
        gradients = _Gradients(t, array_at, limit)
    flattened = flat_of(model)
    return _FlatGradients(flattened, limit) if flattened is not None and gradients.are_in(flattened) else gradients


class _Gradients:
    """The gradients of a model. If arrays cannot be changed in place, the tree itself is a tree of gradients."""

    def __init__(self, t: Tree, array_at: Callable[[int], Any], limit: _Limit) -> None:
        self.tree, self.limit = t, limit
        self.columns: Columns = t.columns
        self.holder = self.columns.node_objects[t.root]
        ties = self.columns.ties
        leaves = [ties.get(row, row) for row in first_rows(t)] if ties else first_rows(t)
        gradients = _gradients_at(self.columns, leaves, list(map(array_at, leaves)))
        self.leaves = [leaf for leaf, gradient in zip(leaves, gradients, strict=True) if gradient is not None]
        self._arrays = [gradient for gradient in gradients if gradient is not None]
        if not self.leaves:
            raise WalkError("no leaf has a gradient; call lw.clip after backward()")
        self._batches = self.columns.batches(self.leaves, self._arrays)

    def are_in(self, flattened: Flat) -> bool:
        """Whether these are exactly the gradients in the vectors of a Flat."""
        if len(flattened.parts) != 1:
            return False
        part = flattened.parts[0]
        return part.leaves == self.leaves and part.packed.holds(self._arrays)

    def clip_together(self, max_norm: float) -> list[float] | None:
        """Clips all gradients at once, if they are finite, and returns their norms before clipping. None if their homes
        cannot do this."""
        if len(self._batches) != 1:
            return None
        return self._batches[0].home.capability(Clipping).clip_together(self._arrays, max_norm)

    def norms(self) -> list[float]:
        norms = [0.0] * len(self._arrays)
        for batch in self._batches:
            batch_norms = batch.home.capability(Clipping).norms(batch.values)
            for position, norm in zip(batch.positions, batch_norms, strict=True):
                norms[position] = norm
        return norms

    def scale(self, factors: Sequence[float]) -> Any:
        """Multiplies each gradient by its factor, or all by a single one. Returns the object that has the gradients."""
        new: dict[int, Any] = {}
        for batch in self._batches:
            home = batch.home
            positions = [at for at in batch.positions if len(factors) == 1 or factors[at] != 1]
            batch_factors = [factors[0]] if len(factors) == 1 else [factors[at] for at in positions]
            try:
                scaled = home.capability(Clipping).scale_many([self._arrays[at] for at in positions], batch_factors)
            except Unsupported:
                raise
            except RuntimeError as error:
                reasons_by_leaf = home.capability(Loading).cannot_write([self._arrays[at] for at in positions])
                reasons = zip(positions, reasons_by_leaf, strict=True)
                culprit, reason = next((pair for pair in reasons if pair[1]), (positions[0], str(error)))
                name = self.columns.row_text(self.leaves[culprit])
                raise WriteError(f"cannot clip the gradient of {name}: {reason}") from error
            if home.capability(Clipping).takes_gradients:
                new.update({self.leaves[at]: array for at, array in zip(positions, scaled, strict=True)})
        return with_leaves(self.tree, new, copied=True) if new else self.holder


def _gradients_at(columns: Columns, leaves: Sequence[int], values: list[Any]) -> list[Any]:
    """The gradient of each array; None if it has none."""
    gradients: list[Any] = [None] * len(values)
    batches = columns.batches(leaves, values)
    are_gradients = {batch.home: batch.home.capability(Clipping).takes_gradients for batch in batches}
    for batch in batches:
        if any(are_gradients.values()) and not are_gradients[batch.home]:
            raise WalkError(
                f"{columns.row_text(batch.rows[0])} is an array of {batch.home.name} among gradients of JAX; "
                "convert it: jax.tree.map(jnp.asarray, gradients)"
            )
        if are_gradients[batch.home]:
            _check_are_gradients(columns, batch.rows)
            batch_gradients = batch.values
        else:
            batch_gradients = batch.home.grads(batch.values)
        if len(batch_gradients) == len(values):
            return batch_gradients
        for position, gradient in zip(batch.positions, batch_gradients, strict=True):
            gradients[position] = gradient
    return gradients


def _check_are_gradients(columns: Columns, leaves: Sequence[int]) -> None:
    """Raises if leaves that should be gradients are known to be something else, such as the weights of a model, or
    integers."""
    for node in dict.fromkeys(columns.row_nodes[leaf] for leaf in leaves):
        owner = columns.node_objects[node]
        if reason := columns.home(owner).capability(Clipping).cannot_have_gradients(owner):
            leaf = next(leaf for leaf in leaves if columns.row_nodes[leaf] == node)
            raise WalkError(f"{columns.row_text(leaf)} is not a gradient: {reason}")
    for leaf, facts in zip(leaves, columns.facts(leaves), strict=True):
        if not is_inexact(facts.spec.dtype):
            raise WalkError(
                f"{columns.row_text(leaf)} is not a gradient: it is {facts.spec.dtype}; nothing was changed; pass "
                "gradients only, such as eqx.filter(gradients, eqx.is_inexact_array)"
            )


class _ShardedGradients(_Gradients):
    """The gradients of a model that is sharded over several ranks. Each rank computes the norms of its parts, and one
    exchange combines those of all leaves. Each rank scales its parts."""

    def __init__(self, t: Tree, array_at: Callable[[int], Any], limit: _Limit, team: Team) -> None:
        super().__init__(t, array_at, limit)
        self._team = team
        self._whole_arrays = self._arrays
        self._pending: set[int] = set()  # positions of gradients that are sums over ranks, not computed yet
        self._copies: set[int] = set()  # positions of gradients that count on another rank, which has a copy of them
        local = list(self._arrays)
        for batch in self._batches:
            distributing = batch.home.capability(Distributing)
            for position, gradient in zip(batch.positions, batch.values, strict=True):
                local[position] = distributing.local(gradient)
                if distributing.cannot_use_parts(gradient):
                    self._pending.add(position)
                elif not distributing.counts_here(gradient, team):
                    self._copies.add(position)
        self._arrays = local
        self._batches = self.columns.batches(self.leaves, local)

    def facts(self) -> list[tuple[str, str]]:
        """What must be the same on every rank: which leaves have gradients, how these are sharded, and their limits."""
        max_norm, queries, per = self.limit
        groups = [range(len(self.leaves))] if queries is None else _positions(self, queries)
        group_of = {position: number for number, positions in enumerate(groups) for position in positions}
        facts = []
        for batch in self.columns.batches(self.leaves, self._whole_arrays):
            specs = batch.home.specs(batch.values)
            for position, path, spec in zip(batch.positions, batch.paths, specs, strict=True):
                group = group_of.get(position)
                limited = "not clipped" if group is None else f"clipped to {max_norm!r} per {per}, with group {group}"
                facts.append((path, f"a gradient ({spec.sharding or 'whole'}), {limited}"))
        return facts

    def clip_together(self, max_norm: float) -> list[float] | None:
        return None

    def norms(self) -> list[float]:
        norms = super().norms()
        for batch in self.columns.batches(self.leaves, self._whole_arrays) if self._pending else ():
            clipping = batch.home.capability(Clipping)
            for position, gradient in zip(batch.positions, batch.values, strict=True):
                if position in self._pending:
                    [norms[position]] = clipping.norms([gradient])  # every rank gets the norm of the whole
        for position in self._copies:
            # A copy that is not finite counts: every rank must know that it must not be used.
            norms[position] = 0.0 if math.isfinite(norms[position]) else norms[position]
        own = array("d", norms)
        every = range(len(own))
        if not is_shared_out(self._team, len(own) * own.itemsize):
            return list(self._norms_over_ranks(every, self._team.gather(own.tobytes())))
        shares = combined(
            self._team,
            len(own),
            lambda share: own[share.start : share.stop].tobytes(),
            lambda share, results: self._norms_over_ranks(share, results).tobytes(),
        )
        return list(array("d", b"".join(shares)))

    def _norms_over_ranks(self, positions: range, results: list[bytes]) -> "array[float]":
        """The norms of the gradients at some positions, from those of the parts of every rank."""
        by_leaf = zip(*(array("d", result) for result in results), strict=True)
        return array(
            "d",
            [
                _largest(each) if position in self._pending else math.hypot(*each)
                for position, each in zip(positions, by_leaf, strict=True)
            ],
        )


def _largest(norms: Sequence[float]) -> float:
    return next((norm for norm in norms if not math.isfinite(norm)), max(norms))


class _FlatGradients(_Gradients):
    """The gradients of a flat model, which are in a few vectors."""

    def __init__(self, flattened: Flat, limit: _Limit) -> None:
        self.limit = limit
        self.tree, self.columns = flattened.tree, flattened.tree.columns
        self.holder = flattened.model
        self.leaves = [leaf for part in flattened.parts for leaf in part.leaves]
        self._parts = flattened.parts

    def clip_together(self, max_norm: float) -> list[float] | None:
        return self._parts[0].packed.clip_together(max_norm) if len(self._parts) == 1 else None

    def norms(self) -> list[float]:
        return [norm for part in self._parts for norm in part.packed.norms()]

    def scale(self, factors: Sequence[float]) -> Any:
        start = 0
        for part in self._parts:
            count = len(part.leaves)
            part.packed.scale(factors if len(factors) == 1 else factors[start : start + count])
            start += count
        return self.holder


def _factors(gradients: _Gradients, norms: Sequence[float]) -> list[float] | None:
    """The factor of each gradient; a single factor if it is the same for all; None if nothing changes."""
    max_norm, queries, per = gradients.limit
    if queries is None and per == "tree":
        factor = _factor(math.hypot(*norms), max_norm)
        return None if factor == 1 else [factor]
    factors = [1.0] * len(norms)
    for positions in [range(len(norms))] if queries is None else _positions(gradients, queries):
        together = math.hypot(*[norms[position] for position in positions])
        for position in positions:
            factors[position] = _factor(norms[position] if per == "leaf" else together, max_norm)
    return None if all(factor == 1 for factor in factors) else factors


def _factor(norm: float, max_norm: float) -> float:
    return min(1.0, max_norm / norm) if math.isfinite(norm) and norm else 1.0


def _positions(gradients: _Gradients, queries: Sequence[Any]) -> list[list[int]]:
    """For each query, the positions of the gradients that match."""
    t = gradients.tree
    position_of = {leaf: position for position, leaf in enumerate(gradients.leaves)}
    matched_by: dict[int, Any] = {}
    positions = []
    for where in queries:
        leaves = leaves_matching(t, where)
        for leaf in leaves:
            if leaf in matched_by:
                name = t.columns.row_text(leaf)
                raise RuleError(
                    f"{name} matches both {matched_by[leaf]!r} and {where!r}; a leaf may match only one query of where="
                )
            matched_by[leaf] = where
        positions.append([position_of[leaf] for leaf in sorted(leaves) if leaf in position_of])
    return positions
