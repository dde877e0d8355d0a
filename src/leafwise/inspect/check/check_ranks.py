"""Checking a model whose leaves are sharded over ranks, with the same findings on every rank.

The rules run on the first rank only. Where they need values, it sends the other ranks what to do together: measure the
statistics, compare with a baseline, search for lines of zeros, or read a box of a leaf. The others follow, and get the
findings at the end. Otherwise a rank whose copy of a whole leaf differs, such as the running mean of a normalization,
might take another turn in a rule, and wait for something that the others never send.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from leafwise import errors
from leafwise.core.capabilities.measuring import bands
from leafwise.core.capabilities.searching import Lines, Searching
from leafwise.core.capabilities.sharding import Team
from leafwise.core.home import Home
from leafwise.core.memory.sharding import LocalPart
from leafwise.core.work.ranks import agree, is_shared_out
from leafwise.errors import Error, RankError
from leafwise.inspect.check.findings import Finding, Findings
from leafwise.inspect.ranks.teamwork import collect, collect_combined, counted_parts, file_facts, tree_facts

if TYPE_CHECKING:
    from leafwise.inspect.check.evidence import Evidence
    from leafwise.inspect.check.leaf_evidence import ValuesOf
    from leafwise.inspect.check.rules.registry import CheckRule

Place = tuple[Literal["tree", "baseline"], int, "ValuesOf"]  # which tree, a row, and which of its values
Box = tuple[slice, ...]

# Errors of rules, which the other ranks raise as well, with the same class.
_KINDS = {cls.__name__: cls for cls in (errors.WalkError, errors.QueryError, errors.PathError, errors.FileError)}


class CheckRanks:
    """The ranks that check a model together."""

    def __init__(self, team: Team, evidence: "Evidence") -> None:
        self._team, self._evidence = team, evidence

    def findings(self, rules: "list[CheckRule]", check: Callable[[], Findings]) -> Findings:
        """The findings of the first rank, on every rank."""
        agree(self._team, "check", self._facts(rules))
        if self._team.rank:
            return self._follow()
        try:
            findings = check()
        except Exception as error:
            if not _is_unreachable(error):
                rank, path = (error.rank, error.path) if isinstance(error, RankError) else (self._team.ranks[0], "")
                self._send("raise", type(error).__name__, str(error), rank, path)
            raise
        self._send("end", list(findings), findings.sections, findings.rules, findings.skipped)
        return findings

    def _facts(self, rules: "list[CheckRule]") -> list[tuple[str, str]]:
        evidence = self._evidence
        state = {name: f"state of {len(part):,} leaves" for name, part in evidence.coverage.passed_state().items()}
        arguments = {
            "rules": ", ".join(rule.code for rule in rules),
            "init": "given" if evidence.init is not None else "none",
            "against": "given" if evidence.baseline is not None else "none",
            **state,
        }
        baseline = []
        if evidence.baseline is not None:
            baseline = [*tree_facts(evidence.baseline, "against: "), *file_facts(evidence.baseline)]
        return [*arguments.items(), *tree_facts(evidence.tree), *baseline]

    # -- the first rank ----------------------------------------------------------------------------------

    def on_all_ranks(self, action: str, *arguments: Any) -> None:
        """Makes the other ranks do the same as the first one, which goes on to do it."""
        if not self._team.rank:
            self._send(action, *arguments)

    def _send(self, action: str, *arguments: Any) -> None:
        self._team.gather_any(json.dumps([action, *arguments]).encode())

    def array(self, home: Home, value: Any, place: Place) -> tuple[Home, Any]:
        """An array, with its home, that rules can read: the array itself if it is whole."""
        spec = home.spec(value)
        if spec.sharding is None:
            return home, value
        from leafwise.inspect.ranks.spread_arrays import SPREAD, SpreadArray, whole_box

        def read(box: Box) -> Any:
            return self._read([(place, whole_box(box, spec.shape or ()))])[0]

        return SPREAD, SpreadArray(spec, read)

    def read(self, boxes: list[tuple[int, Box]]) -> list[Any]:
        """Boxes of the values of leaves, given by their numbers, at once."""
        from leafwise.inspect.ranks.spread_arrays import whole_box

        by_number = self._evidence.by_number
        return self._read([(("tree", leaf, "value"), whole_box(box, by_number[leaf].shape)) for leaf, box in boxes])

    def _read(self, boxes: list[tuple[Place, Box]]) -> list[Any]:
        from leafwise.inspect.ranks.spread_arrays import read_boxes

        evidence = self._evidence
        self.on_all_ranks("read", [(place, [(part.start, part.stop) for part in box]) for place, box in boxes])
        arrays = [
            evidence.own_baseline_array(row) if which == "baseline" else evidence.own_array(row, of)
            for (which, row, of), _ in boxes
        ]
        return read_boxes(self._team, arrays, [box for _, box in boxes])

    def zero_lines(self, places: list[tuple[int, int]], of: "ValuesOf") -> list[Any]:
        """For each leaf, given by its number, and axis, which of its lines contain only zeros."""
        import numpy as np

        self.on_all_ranks("zero_lines", places, of)
        lengths = [self._evidence.by_number[leaf].shape[axis] for leaf, axis in places]
        size = -(-sum(lengths) // 8)  # bytes, with a bit for each line
        if is_shared_out(self._team, size):

            def work() -> Callable[[range], bytes]:
                nonzero = self._nonzero_here(places, of)
                return lambda share: nonzero[share.start : share.stop]

            nonzero = b"".join(collect_combined(self._team, size, work, lambda _, results: _any_set(results)))
        else:
            nonzero = _any_set(collect(self._team, lambda: self._nonzero_here(places, of), size))
        is_nonzero = np.unpackbits(np.frombuffer(nonzero, np.uint8), count=sum(lengths)).astype(bool)
        return np.split(~is_nonzero, np.cumsum(lengths)[:-1])

    def _nonzero_here(self, places: list[tuple[int, int]], of: "ValuesOf") -> bytes:
        """For each line, as a bit, whether it has a nonzero value on this rank."""
        import numpy as np

        flags = []
        for number, axis in places:
            nonzero = np.zeros(self._evidence.by_number[number].shape[axis], bool)
            home, value = self._evidence.own_array(number, of)
            for part in counted_parts(home, value, self._team):
                if all(part.shape):
                    nonzero[part.inside()[axis]] |= ~_zero_lines(home, part, axis)
            flags.append(nonzero)
        return np.packbits(np.concatenate(flags)).tobytes()

    # -- the other ranks ---------------------------------------------------------------------------------

    def _follow(self) -> Findings:
        while True:
            action, *arguments = json.loads(self._team.gather_any(b"")[0])
            if action == "end":
                return _findings_of(*arguments)
            if action == "raise":
                raise self._error(*arguments)
            try:
                self._do(action, *arguments)
            except Exception as error:
                # The first rank has an error as well, and says whether the check goes on.
                if _is_unreachable(error) or not isinstance(error, Error | MemoryError):
                    raise

    def _do(self, action: str, *arguments: Any) -> None:
        evidence = self._evidence
        match action:
            case "read":
                self._read([(place, tuple(slice(start, stop) for start, stop in box)) for place, box in arguments[0]])
            case "zero_lines":
                places, of = arguments
                self.zero_lines([(leaf, axis) for leaf, axis in places], of)
            case "measured":
                evidence.measured(arguments[0])
            case "measured_state":
                evidence.coverage.measured_state()
            case "difference":
                evidence.difference()
            case _:
                raise AssertionError("the first rank sends only these actions")

    def _error(self, kind: str, message: str, rank: int, path: str) -> Error:
        if kind in _KINDS:
            return _KINDS[kind](message)
        return RankError(message if kind == "RankError" else f"rank {rank} failed: {kind}: {message}", rank, path)


def _is_unreachable(error: Exception) -> bool:
    """Whether ranks cannot reach each other, so that nothing more can be sent."""
    return isinstance(error, RankError) and error.rank is None


def _findings_of(findings: list[Any], sections: Any, rules: list[str], skipped: dict[str, str]) -> Findings:
    made = [
        Finding(code, level, path, message, tuple(tuple(i) if isinstance(i, list) else i for i in indices), axis, total)
        for code, level, path, message, indices, axis, total in findings
    ]
    return Findings(made, sections, tuple(rules), skipped)


def _any_set(results: list[bytes]) -> bytes:
    """The bits that are set in any of the results."""
    import numpy as np

    return bytes(np.bitwise_or.reduce([np.frombuffer(result, np.uint8) for result in results]).tobytes())


def _zero_lines(home: Home, part: LocalPart, axis: int) -> Any:
    """For each line of a part, whether all of its values are zero: on a GPU without copying them."""
    from leafwise.inspect.check.zero_lines import zero_lines_of

    searching = home.capability(Searching)
    searched = searching.zero_lines([Lines(part.value, axis)]) if searching.is_searched(part.value) else None
    return zero_lines_of(bands(home, part.value, part.shape), part.shape, axis) if searched is None else searched[0]
