"""What an edit does, for its plan: steps, and problems that prevent it."""

from dataclasses import dataclass, field


@dataclass
class Step:
    """One step of an edit: what is done, to what, and to which names. `values` counts plain values among them."""

    verb: str
    what: str
    names: list[str] = field(default_factory=list)
    nbytes: int = 0
    values: int = 0


class Steps:
    """The steps of an edit, the problems that prevent it, and remarks."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.problems: list[str] = []
        self.notes: list[str] = []

    def add(self, verb: str, what: str, names: list[str], nbytes: int = 0, values: int = 0) -> None:
        self.steps.append(Step(verb, what, names, nbytes, values))

    def matched_nothing(self, option: str, query: object) -> None:
        self.problems.append(f"{option}= {query!r} matches nothing in the source")
