"""`lw.uses`: the gradient of a parameter, separately for each use."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import reduce
from operator import add
from types import TracebackType
from typing import Any

from leafwise.core.capabilities.clipping import Clipping
from leafwise.core.capabilities.uses import TrackingUses, Use
from leafwise.core.columns import Columns
from leafwise.core.parts import check_not_gathered, check_whole
from leafwise.core.path import Path, escape
from leafwise.core.results.result import Table
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import PathError, TieError
from leafwise.share.places import nothing_matches, rows_by_home


class UseGradients(Mapping[Use, Any]):
    """The gradient of one leaf for each `Use`; see `lw.uses`. Their sum is what backward added to `.grad`.

    It is indexed by a `Use`, or by the path of a module that used the leaf exactly once.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 1))
    >>> with lw.uses(net) as uses:
    ...     net(torch.tensor([[3.0, 4.0]])).sum().backward()
    >>> uses["0.weight"]["0"]
    tensor([[3., 4.]])
    """

    def __init__(self, name: str, gradients: dict[Use, Any]) -> None:
        self._name = name
        self._gradients = gradients

    def __getitem__(self, use: Use | str) -> Any:
        if isinstance(use, Use):
            return self._gradients[use]
        matches = [gradient for known, gradient in self._gradients.items() if known.path == str(use)]
        if len(matches) == 1:
            return matches[0]
        uses = "; ".join(map(str, self._gradients)) or "none"
        used = f"was used {len(matches)} times" if matches else "was not used"
        raise PathError(f"{self._name} {used} in {str(use) or '(root)'}; its uses are: {uses}")

    def __contains__(self, use: object) -> bool:
        return use in self._gradients or any(known.path == use for known in self._gradients)

    def __iter__(self) -> Iterator[Use]:
        return iter(self._gradients)

    def __len__(self) -> int:
        return len(self._gradients)

    def total(self) -> Any:
        """The sum over all uses; None if there are none."""
        gradients = list(self._gradients.values())
        if len({getattr(gradient, "layout", None) for gradient in gradients}) > 1:
            gradients = [gradient.to_dense() for gradient in gradients]
        return reduce(add, gradients) if gradients else None

    def __repr__(self) -> str:
        return escape(f"<{self._name}: {'; '.join(map(str, self._gradients)) or 'no use'}>")


class Uses(Table, Mapping[Path, UseGradients], kind="uses"):
    """The result of `with lw.uses(model) as uses:`. It maps each leaf, by any of its paths, to its `UseGradients`.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Linear(2, 1)
    >>> with lw.uses(net) as uses:
    ...     net(torch.ones(1, 2)).sum().backward()
    >>> [str(use) for use in uses["bias"]]
    ['(root) call 0: linear']
    """

    def __init__(self, t: Tree, where: Any) -> None:
        self._tree = t if where is None else t.select(where)
        if where is not None and not len(self._tree):
            raise nothing_matches(t, where)
        self._read: list[Callable[[], dict[str, dict[Use, Any]]]] = []
        self._stack = ExitStack()
        self._is_entered = False

    def __enter__(self) -> "Uses":
        if self._is_entered:
            raise TieError("these uses are being recorded already; call lw.uses(model) again for another recording")
        self._read = []
        columns = self._tree.columns
        nodes: dict[int, list[str]] = {}
        for node, obj in enumerate(columns.node_objects):
            nodes.setdefault(id(obj), []).append(columns.node_text(node))
        leaves = [leaf.number for leaf in self._tree if leaf.trainable and leaf.kind == "parameter"]
        if not leaves:
            raise TieError("cannot track uses: there are no trainable parameters")
        lazy = [leaf.path for leaf in self._tree if leaf.trainable and leaf.shape is None]
        if lazy:
            raise TieError(f"cannot track uses: {lazy[0]} has no shape until the first forward; run one first")
        for home, home_leaves in rows_by_home(columns, leaves).items():
            arrays = {columns.row_text(leaf): columns.current(leaf) for leaf in home_leaves}
            capture: AbstractContextManager[Any] = home.capability(TrackingUses).capture(nodes, arrays)
            self._read.append(self._stack.enter_context(capture))
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_entered = False
        self._stack.__exit__(kind, error, traceback)

    def __getitem__(self, path: str | Path) -> UseGradients:
        leaf = self._tree[path]
        if isinstance(leaf, Tree):
            raise PathError(f"{path} is a module; index with one of its leaves, such as {next(iter(leaf)).path}")
        name = self._tree.columns.row_text(leaf.number)
        return UseGradients(name, self._gradients().get(name, {}))

    def _gradients(self) -> dict[str, dict[Use, Any]]:
        """The gradient of each leaf, by its path, for each use so far."""
        return {name: by_use for read in self._read for name, by_use in read().items()}

    def _ipython_key_completions_(self) -> list[str]:
        return [str(path) for path in self]

    def __iter__(self) -> Iterator[Path]:
        return (path for path, _ in self._tree.items())

    def __len__(self) -> int:
        return len(self._tree)

    def account(self) -> dict[str, dict[Use, float]]:
        """For each leaf, by path, the norm of its gradient in each of its uses."""
        columns = self._tree.columns
        gradients = self._gradients()
        return {
            str(path): {
                use: _norm(columns, array) for use, array in gradients.get(columns.row_text(leaf.number), {}).items()
            }
            for path, leaf in self._tree.items()
        }


def _norm(columns: Columns, array: Any) -> float:
    dense = array.to_dense() if "sparse" in str(getattr(array, "layout", "")) else array
    return columns.home(dense).capability(Clipping).norms([dense])[0]


def uses(model: Any, where: Any = None) -> Uses:
    """Records the gradient of each parameter separately for each use: `with lw.uses(model) as uses:`.

    Run forward and backward inside the `with` block. Then `uses["embed.weight"]` maps each `Use` of the parameter (in
    which module, in which of its calls, by which operation) to its part of the gradient. With `where`, only the leaves
    that match are recorded.

    The parts add up to what backward added to `.grad`; a part that cannot be attributed is listed separately. Gradients
    that `torch.autograd.grad` computes are recorded, too. A recomputation by activation checkpointing counts as the
    use that it repeats. Several threads can record the same model: each gets its own uses.

    >>> import torch, leafwise as lw
    >>> cell = torch.nn.Linear(3, 3, bias=False)
    >>> with lw.uses(cell) as uses:
    ...     cell(cell(torch.ones(1, 3))).sum().backward()
    >>> for use, gradient in uses["weight"].items():
    ...     print(use, tuple(gradient.shape))
    (root) call 0: linear (3, 3)
    (root) call 1: linear (3, 3)
    >>> torch.allclose(uses["weight"].total(), cell.weight.grad)
    True
    """
    with opened(model, "uses", live=True, action="track uses") as t:
        check_whole(t, "track the uses of")
        check_not_gathered(t, "track the uses of")
        return Uses(t, where)
