"""What a comparison asks about Placements. Who knows the rules of OCM's scheduler is found by the entry point group
`dsf.placements`; the distribution of the extra `optimizer` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Final, Protocol

from dsf.backtest.record import Question, Record

GROUP: Final = "dsf.placements"


@dataclass
class Scores:
    """One scorer's items in force on each cluster: a score counts until the next one, or until it expires."""

    questions: Mapping[str, Question]
    _last: dict[str, Record] = field(default_factory=dict)

    def take(self, records: Iterable[Record]) -> None:
        """What was said at one moment. A failure leaves the score before in force."""
        self._last.update((record.cluster, record) for record in records if record.outcome != "error")

    def value(self, cluster: str, item: str, at: int, names: frozenset[str]) -> int | None:
        """The item's value; that of the score's own name for an item named after any of the score names `names`."""
        record = self._last.get(cluster)
        if record is None or at > record.at + self.questions[cluster].validity:
            return None
        if item not in record.items and item in names:
            item = self.questions[cluster].score_name
        return record.items.get(item)


class Decisions(Protocol):
    """The decisions of one Placement with the scores of one scorer, moment after moment."""

    #: How often the clusters were others than at the moment before.
    flaps: int
    #: Why no decision is possible.
    problem: str
    #: Whether it has CEL expressions, which are not evaluated.
    has_cel: bool

    def decide(self, at: int) -> tuple[str, ...]:
        """The clusters at this moment, sorted."""


class Placement(Protocol):
    """One Placement."""

    @property
    def namespace(self) -> str:
        """Empty where its manifest has none."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def clusters(self) -> Collection[str]:
        """Those that it chooses from."""

    def replay(self, scores: Scores, resources: frozenset[str], names: frozenset[str]) -> Decisions:
        """Its decisions with `scores` in place of those of the AddOnPlacementScores `resources`.

        `names` are the names of the scores that are compared.
        """


#: Reads Placements: those in files or of the hub that are named, else those of the hub that prefer one of the
#: AddOnPlacementScores. Takes the names, the tested clusters and the names of these objects; also returns what could
#: not be read, one sentence each. Raises DsfError.
Read = Callable[[Collection[str], Collection[str], Collection[str]], tuple[list[Placement], list[str]]]


def installed() -> Read | None:
    """The reader; None where nobody knows the rules."""
    for entry in entry_points(group=GROUP):
        read: Read = entry.load()
        return read
    return None
