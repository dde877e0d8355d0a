"""The types of results, for annotations and `isinstance`. Verbs return them; do not create them yourself.

>>> from leafwise.results import Findings, Stats
>>> def worst(findings: Findings) -> str:
...     return findings[0].message if findings else "nothing found"
"""

from leafwise.checkpoint.editing.result import Edit, EditedLeaf, EditSize, Step
from leafwise.checkpoint.planning.plan import Plan, Problem
from leafwise.checkpoint.saving.background import BackgroundSave
from leafwise.checkpoint.verifying import Verified
from leafwise.core.capabilities.uses import Use
from leafwise.core.leaf import SharedMemory, Tie, UndoneTie
from leafwise.core.memory.sharding import Sharding
from leafwise.core.opaque import Opaque, OpaqueObject
from leafwise.core.pairing.proposals import Proposal
from leafwise.core.results.result import Result, Table
from leafwise.core.results.totals import LargeLeaf, Largest, Total, Totals
from leafwise.core.tree import Counts, Tree
from leafwise.core.work.fleet import Fleet
from leafwise.inspect.check.findings import Finding, Findings
from leafwise.inspect.diff.changes import Change
from leafwise.inspect.diff.difference import Diff
from leafwise.inspect.image.picture import Image
from leafwise.inspect.indices import Places
from leafwise.inspect.stats.rows import Row
from leafwise.inspect.stats.statistics import Stats
from leafwise.iterate.clipping import Norms
from leafwise.iterate.flat import Flat, FlatPart
from leafwise.iterate.groups import GroupAccount, Groups, RuleAccount
from leafwise.share.find import EqualUntied, OptimizerMismatch, Ties
from leafwise.share.shard_units import ShardUnits, UnitTie
from leafwise.share.uses import UseGradients, Uses
from leafwise.web.viewing import View

__all__ = [
    "BackgroundSave",
    "Change",
    "Counts",
    "Diff",
    "Edit",
    "EditSize",
    "EditedLeaf",
    "EqualUntied",
    "Finding",
    "Findings",
    "Flat",
    "FlatPart",
    "Fleet",
    "GroupAccount",
    "Groups",
    "Image",
    "LargeLeaf",
    "Largest",
    "Norms",
    "Opaque",
    "OpaqueObject",
    "OptimizerMismatch",
    "Places",
    "Plan",
    "Problem",
    "Proposal",
    "Result",
    "Row",
    "RuleAccount",
    "ShardUnits",
    "Sharding",
    "SharedMemory",
    "Stats",
    "Step",
    "Table",
    "Tie",
    "Ties",
    "Total",
    "Totals",
    "Tree",
    "UndoneTie",
    "UnitTie",
    "Use",
    "UseGradients",
    "Uses",
    "Verified",
    "View",
]
