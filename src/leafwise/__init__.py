"""leafwise: parameter management for neural networks. Inspect, iterate, share, save.

>>> import torch, leafwise as lw
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
>>> t = lw.tree(net)
>>> t["2.weight"].value is net[2].weight
True

Public names are resolved when they are first used: importing leafwise loads no framework, not even NumPy.
"""

__version__ = "0.1.0"

__all__ = [
    "ArgumentError", "Average", "ChecksumError", "EditError", "Error", "FileError", "Leaf", "LoadError", "Name",
    "Node", "NonFiniteError", "Path", "PathError", "Query", "QueryError", "RankError", "Rule", "RuleError", "Tie",
    "TieError", "TieWarning", "Tree", "Unsupported", "Use", "WalkError", "WorkerError", "WriteError", "add_roles",
    "check", "clip", "diff", "edit", "flat", "freeze", "groups", "image", "initialize", "keep_ties", "layer_decay",
    "load", "no_decay", "open", "plan", "register", "release_ties", "save", "shard_units", "stats", "thaw", "tie",
    "ties", "trainable", "tree", "untie", "uses", "verify", "view", "where",
]  # fmt: skip

_HOLDS = {
    "leafwise.checkpoint.editing.edit": ("edit",),
    "leafwise.checkpoint.loading.load": ("load",),
    "leafwise.checkpoint.planning.planner": ("plan",),
    "leafwise.checkpoint.saving.save": ("save",),
    "leafwise.checkpoint.verifying": ("verify",),
    "leafwise.core.leaf": ("Leaf", "Name", "Node", "Tie"),
    "leafwise.core.path": ("Path",),
    "leafwise.core.query": ("Query", "where"),
    "leafwise.core.capabilities.uses": ("Use",),
    "leafwise.core.tree": ("Tree", "open", "tree"),
    "leafwise.core.registry": ("register",),
    "leafwise.errors": (
        "ArgumentError", "ChecksumError", "EditError", "Error", "FileError", "LoadError", "NonFiniteError",
        "PathError", "QueryError", "RankError", "RuleError", "TieError", "TieWarning", "Unsupported", "WalkError",
        "WorkerError", "WriteError",
    ),
    "leafwise.core.roles.role_table": ("add_roles",),
    "leafwise.inspect.check.linter": ("check",),
    "leafwise.inspect.image.plot": ("image",),
    "leafwise.inspect.diff.difference": ("diff",),
    "leafwise.inspect.stats.statistics": ("stats",),
    "leafwise.iterate.averaging": ("Average",),
    "leafwise.iterate.clipping": ("clip",),
    "leafwise.iterate.flat": ("flat",),
    "leafwise.iterate.freezing": ("freeze", "thaw"),
    "leafwise.iterate.groups": ("groups",),
    "leafwise.iterate.initial_values": ("initialize",),
    "leafwise.iterate.presets": ("layer_decay", "no_decay"),
    "leafwise.iterate.rules": ("Rule",),
    "leafwise.iterate.trainable": ("trainable",),
    "leafwise.share.find": ("ties",),
    "leafwise.share.keep_ties": ("keep_ties", "release_ties"),
    "leafwise.share.shard_units": ("shard_units",),
    "leafwise.share.tie": ("tie",),
    "leafwise.share.untie": ("untie",),
    "leafwise.share.uses": ("uses",),
    "leafwise.web.viewing": ("view",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOLDS.items() for name in names}

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without the cost of importing typing
if TYPE_CHECKING:
    from leafwise.checkpoint.editing.edit import edit
    from leafwise.checkpoint.loading.load import load
    from leafwise.checkpoint.planning.planner import plan
    from leafwise.checkpoint.saving.save import save
    from leafwise.checkpoint.verifying import verify
    from leafwise.core.capabilities.uses import Use
    from leafwise.core.leaf import Leaf, Name, Node, Tie
    from leafwise.core.path import Path
    from leafwise.core.query import Query, where
    from leafwise.core.registry import register
    from leafwise.core.roles.role_table import add_roles
    from leafwise.core.tree import Tree, open, tree
    from leafwise.errors import (
        ArgumentError,
        ChecksumError,
        EditError,
        Error,
        FileError,
        LoadError,
        NonFiniteError,
        PathError,
        QueryError,
        RankError,
        RuleError,
        TieError,
        TieWarning,
        Unsupported,
        WalkError,
        WorkerError,
        WriteError,
    )
    from leafwise.inspect.check.linter import check
    from leafwise.inspect.diff.difference import diff
    from leafwise.inspect.image.plot import image
    from leafwise.inspect.stats.statistics import stats
    from leafwise.iterate.averaging import Average
    from leafwise.iterate.clipping import clip
    from leafwise.iterate.flat import flat
    from leafwise.iterate.freezing import freeze, thaw
    from leafwise.iterate.groups import groups
    from leafwise.iterate.initial_values import initialize
    from leafwise.iterate.presets import layer_decay, no_decay
    from leafwise.iterate.rules import Rule
    from leafwise.iterate.trainable import trainable
    from leafwise.share.find import ties
    from leafwise.share.keep_ties import keep_ties, release_ties
    from leafwise.share.shard_units import shard_units
    from leafwise.share.tie import tie
    from leafwise.share.untie import untie
    from leafwise.share.uses import uses
    from leafwise.web.viewing import view


del TYPE_CHECKING


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'leafwise' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Functions, and the types that people make themselves. Errors and the types of results are there, too."""
    made = {"Average", "Error", "Path", "Rule"}
    return ["__all__", "__version__", *(name for name in __all__ if name[0].islower() or name in made)]
