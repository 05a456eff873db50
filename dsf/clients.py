"""Queries the JSON API of several cells and merges the answers into one view of a fleet with several hubs.

    fleet = Clients({url: Client(url) for url in urls})
    print(len(fleet.scores().scores), fleet.silent)

Methods are those of `dsf.client.Client` with the same answers and errors. A cell that does not answer is in `silent`,
and its clusters are missing from the answer; an error is raised when no cell answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from heapq import merge
from typing import Final, TypeVar

from dsf import keys
from dsf.client import Client
from dsf.errors import ApiError, DsfError, HttpError, UnknownClusterError, UnknownScorerError
from dsf.fleet.changes import ChangeList
from dsf.fleet.overviews import ClusterDetail, ClusterOverview, PairDetail, PairRow
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import (
    ClusterCounts,
    EntryView,
    HistoryList,
    IdleClusters,
    ScheduleList,
    ScoreList,
    ScorerList,
    ScorerView,
    ScoreView,
)

_Answer = TypeVar("_Answer")
_Row = TypeVar("_Row", ScoreView, EntryView)

#: Failures shown per scorer, as many as one cell shows.
_MAX_FAILURES: Final = 10
_WORST_FIRST: Final = tuple(Verdict)
_HEALTH: Final = ("Inactive", "Unknown", "Active")


class Clients:
    """Queries all cells in parallel. Thread-safe."""

    def __init__(self, clients: Mapping[str, Client], on_silent: Callable[[str], None] = lambda _: None) -> None:
        """`clients` by display name; `on_silent` is called once with a message for each cell that does not answer."""
        self._clients = clients
        self._on_silent = on_silent
        #: Why cells did not answer the last query, by name.
        self.silent: dict[str, str] = {}

    def ask(self, question: Callable[[Client], _Answer]) -> list[_Answer]:
        """Answers, in order, of the cells that answer and know the requested scorer or cluster.

        Raises the first cell's error when none has an answer.
        """
        answers: list[_Answer] = []
        errors: list[DsfError] = []
        unknown: list[DsfError] = []
        with ThreadPoolExecutor(len(self._clients)) as pool:
            asked = {name: pool.submit(question, client) for name, client in self._clients.items()}
        for name, future in asked.items():
            try:
                answers.append(future.result())
            except (UnknownClusterError, UnknownScorerError) as error:
                unknown.append(error)
            except (HttpError, ApiError) as error:
                errors.append(error)
                if name not in self.silent:
                    self._on_silent(f"cell {name} does not answer, its clusters are missing: {error}")
                self.silent[name] = str(error)
            else:
                self.silent.pop(name, None)
        if not answers:
            # Only if every cell has answered is it known that none has it.
            raise (errors or unknown)[0]
        return answers

    def scores(
        self,
        cluster: str | None = None,
        scorer: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> ScoreList:
        """See Client."""
        pages = self.ask(lambda client: client.scores(cluster, scorer, limit=limit, after=after))
        rows, following = _page([page.scores for page in pages], [page.continue_ for page in pages], limit)
        return _first(pages, scores=rows, total=sum(page.total for page in pages), continue_=following)

    def worst_scores(self, scorer: str, limit: int) -> ScoreList:
        """See Client."""
        pages = self.ask(lambda client: client.worst_scores(scorer, limit))
        rows = worst_first(score for page in pages for score in page.scores)[:limit]
        return _first(pages, scores=rows, total=sum(page.total for page in pages), continue_=None)

    def schedule(
        self,
        cluster: str | None = None,
        scorer: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> ScheduleList:
        """See Client."""
        pages = self.ask(lambda client: client.schedule(cluster, scorer, limit=limit, after=after))
        rows, following = _page([page.entries for page in pages], [page.continue_ for page in pages], limit)
        return _first(pages, entries=rows, total=sum(page.total for page in pages), continue_=following)

    def scorers(self, scorer: str | None = None) -> ScorerList:
        """See Client."""
        return together(self.ask(lambda client: client.scorers(scorer)))

    def history(self, cluster: str, scorer: str) -> HistoryList:
        """See Client: of the cell that has the cluster."""
        return self.ask(lambda client: client.history(cluster, scorer))[0]

    def pair(self, cluster: str, scorer: str) -> PairDetail:
        """See Client: of the cell that has the cluster."""
        return self.ask(lambda client: client.pair(cluster, scorer))[0]

    def cluster(self, name: str) -> ClusterDetail:
        """See Client: of the cell that has the cluster."""
        return self.ask(lambda client: client.cluster(name))[0]

    def all_clusters(self, cluster: str | None = None) -> Iterator[ClusterOverview]:
        """See Client; worst first within each cell."""
        for found in self.ask(lambda client: list(client.all_clusters(cluster))):
            yield from found

    def all_pairs(
        self, *, cluster: str | None = None, scorer: str | None = None, state: Iterable[str] = ()
    ) -> Iterator[PairRow]:
        """See Client; worst first within each cell."""
        states = list(state)
        for found in self.ask(lambda client: list(client.all_pairs(cluster=cluster, scorer=scorer, state=states))):
            yield from found

    def changes(
        self,
        scorer: str | None = None,
        cluster: str | None = None,
        *,
        since: float | None = None,
        limit: int | None = None,
    ) -> ChangeList:
        """See Client."""
        pages = self.ask(lambda client: client.changes(scorer, cluster, since=since, limit=limit))
        found = sorted((one for page in pages for one in page.changes), key=lambda one: one.at, reverse=True)
        has_more = any(page.continue_ for page in pages) or (limit is not None and len(found) > limit)
        found = found[:limit]
        return pages[0].model_copy(update={"changes": found, "continue_": found[-1].id if has_more and found else None})


def worst_first(scores: Iterable[ScoreView]) -> list[ScoreView]:
    """Scores of several cells."""
    return sorted(scores, key=lambda one: (_WORST_FIRST.index(one.state), one.cluster, one.scorer))


def together(lists: Sequence[ScorerList]) -> ScorerList:
    """The scorers of several cells, merged, with sums over all clusters."""
    by_name: dict[str, list[ScorerView]] = {}
    for one in lists:
        for scorer in one.scorers:
            by_name.setdefault(scorer.name, []).append(scorer)
    scorers = [_sum(found) for _, found in sorted(by_name.items())]
    return lists[0].model_copy(update={"scorers": scorers, "total": len(scorers), "cursor": None})


def _sum(views: Sequence[ScorerView]) -> ScorerView:
    counts = {name: sum(getattr(one.clusters, name) for one in views) for name in ClusterCounts.model_fields}
    newest = max(views, key=lambda one: one.last_success.timestamp() if one.last_success else 0.0)
    failures = sorted((failure for one in views for failure in one.failures), key=lambda one: one.at, reverse=True)
    return views[0].model_copy(
        update={
            "clusters": ClusterCounts(**counts),
            "intervals_in_force": sorted({seconds for one in views for seconds in one.intervals_in_force}),
            "suspended": all(one.suspended for one in views),
            "health_status": min((one.health_status for one in views), key=_HEALTH.index),
            "problem": _problem([one.problem for one in views]),
            "last_success": newest.last_success,
            "age_seconds": newest.age_seconds,
            "failures": failures[:_MAX_FAILURES],
            "idle": _idle(idle for one in views for idle in one.idle),
        }
    )


def _problem(said: Sequence[str]) -> str:
    """The first cell's reason for running nowhere, and how many cells have one if not all have."""
    found = [text for text in said if text]
    where = f" (in {len(found)} of {len(said)} cells)" if 0 < len(found) < len(said) else ""
    return f"{found[0]}{where}" if found else ""


def _idle(found: Iterable[IdleClusters]) -> list[IdleClusters]:
    by_reason: dict[str, list[IdleClusters]] = {}
    for one in found:
        by_reason.setdefault(one.reason, []).append(one)
    longest = (
        min(some, key=lambda one: one.since).model_copy(update={"clusters": sum(one.clusters for one in some)})
        for some in by_reason.values()
    )
    return sorted(longest, key=lambda one: (-one.clusters, one.reason))


def _page(
    lists: Sequence[Sequence[_Row]], following: Sequence[str | None], limit: int | None
) -> tuple[list[_Row], str | None]:
    """Rows of several cells, sorted by cluster and scorer, and the next cursor."""
    rows = list(merge(*lists, key=lambda row: (row.cluster, row.scorer)))
    has_more = any(following) or (limit is not None and len(rows) > limit)
    rows = rows[:limit]
    return rows, keys.pair(rows[-1].cluster, rows[-1].scorer) if has_more and rows else None


_List = TypeVar("_List", ScoreList, ScheduleList)


def _first(pages: Sequence[_List], **values: object) -> _List:
    return pages[0].model_copy(update=values)
