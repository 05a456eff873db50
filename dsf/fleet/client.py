"""A typed client of the read-only JSON API, `/api/v1` of the page, without rights in Redis.

    from dsf.fleet.client import Client

    fleet = Client("http://exporter.example:8080")
    for row in fleet.all_pairs(state=["failing"]):
        print(row.cluster, row.scorer, row.failure.reason if row.failure else "")

Times in responses are those of the server; `Client.offset` says how far this machine's clock is off.
Methods raise UnknownScorerError or UnknownClusterError for an unregistered name, QueryError for a query that the server
rejects as invalid, HttpError when it cannot be reached, and ApiError for other error answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from dsf.errors import ApiError, QueryError, UnknownClusterError, UnknownScorerError
from dsf.fleet.changes import ChangeList
from dsf.fleet.views import (
    Changes,
    ClusterDetail,
    ClusterOverview,
    ClusterPage,
    FleetOverview,
    HistoryList,
    PairDetail,
    PairPage,
    PairRow,
    Problem,
    ScheduleList,
    ScoreList,
    ScorerDetail,
    ScorerPage,
    View,
)
from dsf.http.access import bearer
from dsf.http.client import Answer, probe

_View = TypeVar("_View", bound=View)
_Asked = str | int | list[str] | None

#: For each list: the fields of its rows and of its cursor, and the page size.
_LISTS: Final[dict[type[View], tuple[str, str, int]]] = {
    ChangeList: ("changes", "continue_", 200),
    ClusterPage: ("clusters", "cursor", 200),
    HistoryList: ("cycles", "cursor", 100),
    PairPage: ("pairs", "cursor", 200),
    ScheduleList: ("entries", "continue_", 10_000),
    ScoreList: ("scores", "continue_", 10_000),
    ScorerPage: ("scorers", "cursor", 200),
}


class PairQuery(TypedDict, total=False):
    """Which pairs are wanted; `cluster` may have `*` and `?`."""

    cluster: str | None
    scorer: str | None
    state: Iterable[str]
    stage: str | None
    reason: str | None


class Client:
    """Client of one server. Thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 10.0,
        fetch: Callable[[str, float], Answer] | None = None,
    ) -> None:
        """`url` of the server with or without `/api/v1`; `token` is sent as Bearer token, `timeout` is seconds per
        answer. `fetch` makes a request in place of this class, for a URL and within a timeout."""
        self._base = url.rstrip("/").removesuffix("/api/v1") + "/api/v1/"
        self._token = token
        self._timeout = timeout
        self._fetch = fetch or self._fetch_directly
        #: Seconds to add to the time of this machine for that of the server, by the newest response.
        self.offset = 0.0

    def time(self) -> tuple[int, int]:
        """Return the server's time: seconds and microseconds since 1970, as of a `dsf.process.hubclock.Server`."""
        at = self.clusters(limit=1).at.timestamp()
        return int(at), int(at % 1 * 1e6)

    def summary(self) -> FleetOverview:
        """Return the whole fleet in numbers, with its 200 worst scorers; `scorers` has all."""
        return self._get(FleetOverview, "summary")

    def scorers(self, scorer: str | None = None) -> ScorerPage:
        """Return every registered scorer and its state, or one."""
        return self._gather(ScorerPage, "scorers", scorer=scorer)

    def scorer(self, name: str) -> ScorerDetail:
        """Return a scorer on all its clusters."""
        return self._get(ScorerDetail, f"scorers/{quote(name, safe='')}")

    def clusters(self, cluster: str | None = None, *, limit: int = 100, cursor: str | None = None) -> ClusterPage:
        """Clusters, worst first; `cluster` may have `*` and `?`."""
        return self._get(ClusterPage, "clusters", cluster=cluster, limit=limit, cursor=cursor)

    def all_clusters(self, cluster: str | None = None) -> Iterator[ClusterOverview]:
        """All of them, page by page."""
        for page in self._pages(ClusterPage, "clusters", cluster=cluster):
            yield from page.clusters

    def cluster(self, name: str) -> ClusterDetail:
        """One cluster."""
        return self._get(ClusterDetail, f"clusters/{quote(name, safe='')}")

    def pairs(self, *, limit: int = 100, cursor: str | None = None, **query: Unpack[PairQuery]) -> PairPage:
        """Scorers on clusters, worst first."""
        return self._get(PairPage, "pairs", **_texts(query), limit=limit, cursor=cursor)

    def all_pairs(self, **query: Unpack[PairQuery]) -> Iterator[PairRow]:
        """All of them, page by page."""
        for page in self._pages(PairPage, "pairs", **_texts(query)):
            yield from page.pairs

    def pair(self, cluster: str, scorer: str) -> PairDetail:
        """Return a scorer on a cluster, with its newest cycles."""
        return self._get(PairDetail, f"pairs/{quote(cluster, safe='')}/{quote(scorer, safe='')}")

    def updates(self, since: int, *, limit: int | None = None) -> Changes:
        """Changes after the one with this number (`sequence` of the summary), at most 5,000 or `limit`."""
        return self._get(Changes, "updates", since=since, limit=limit)

    def scores(
        self,
        cluster: str | None = None,
        scorer: str | None = None,
        *,
        states: Iterable[str] = (),
        limit: int | None = None,
        after: str | None = None,
    ) -> ScoreList:
        """The newest scores, sorted by cluster and scorer, or only of `states`, worst first; at most `limit` (None:
        all), `after` is `continue` of the response before."""
        return self._gather(ScoreList, "scores", limit, after, cluster=cluster, scorer=scorer, state=[*states])

    def schedule(
        self,
        cluster: str | None = None,
        scorer: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> ScheduleList:
        """Entries of the schedule; filters and pages are those of `scores`."""
        return self._gather(ScheduleList, "schedule", limit, after, cluster=cluster, scorer=scorer)

    def history(self, cluster: str, scorer: str) -> HistoryList:
        """Return the newest cycles of one pair and its counters."""
        path = f"history/{quote(cluster, safe='')}/{quote(scorer, safe='')}"
        return self._gather(HistoryList, path)

    def changes(
        self,
        scorer: str | None = None,
        cluster: str | None = None,
        *,
        since: float | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> ChangeList:
        """Actions of users, newest first; only the page serves them. `since` is unix seconds, pages as in `scores`."""
        start = None if since is None else repr(max(0.0, since))
        return self._gather(ChangeList, "changes", limit, after, scorer=scorer, cluster=cluster, since=start)

    def _gather(
        self, model: type[_View], path: str, limit: int | None = None, after: str | None = None, **parameters: _Asked
    ) -> _View:
        """Return the first page, extended by the rows of the following ones up to `limit` (None: all)."""
        rows, cursor, _ = _LISTS[model]
        pages = list(self._pages(model, path, limit, after, **parameters))
        gathered = [row for page in pages for row in getattr(page, rows)]
        return pages[0].model_copy(update={rows: gathered, cursor: getattr(pages[-1], cursor)})

    def _pages(
        self, model: type[_View], path: str, limit: int | None = None, after: str | None = None, **parameters: _Asked
    ) -> Iterator[_View]:
        rows, cursor, max_rows = _LISTS[model]
        remaining_rows = float("inf") if limit is None else limit
        while True:
            page = self._get(model, path, cursor=after, limit=int(min(remaining_rows, max_rows)), **parameters)
            yield page
            # The page may be shorter than requested if its rows are long.
            remaining_rows -= len(getattr(page, rows))
            after = getattr(page, cursor)
            if after is None or remaining_rows <= 0:
                return

    def _get(self, model: type[_View], path: str, **parameters: _Asked) -> _View:
        query = urlencode({name: value for name, value in parameters.items() if value not in (None, [])}, doseq=True)
        url = f"{self._base}{path}" + (f"?{query}" if query else "")
        answer = self._fetch(url, self._timeout)
        if answer.status != 200:
            raise self._refusal(answer.status, answer.body, path)
        try:
            view = model.model_validate_json(answer.body)
        except ValidationError as error:
            raise self._another(path, f"{error.error_count()} mistakes") from None
        if isinstance(at := getattr(view, "at", None), datetime):
            self.offset = at.timestamp() - time.time()
        return view

    def _fetch_directly(self, url: str, timeout: float) -> Answer:
        # The server's responses are about a megabyte at most.
        return probe(url, deadline=time.monotonic() + timeout, max_bytes=16 * 1024 * 1024, access=bearer(self._token))

    def _refusal(self, status: int, body: bytes, path: str) -> Exception:
        try:
            detail = Problem.model_validate_json(body).detail
        except ValidationError:
            if 400 <= status < 500 and status not in (401, 403):
                return self._another(path, f"HTTP {status}")
            # A proxy in front of the right server may also answer this.
            detail = f"HTTP {status}"
        return _error(status, detail, path)

    def _another(self, path: str, why: str) -> ApiError:
        return ApiError(
            f"{self._base}{path} does not answer as /api/v1 of DSF does ({why}): DSF_API_URL must be the address of "
            "the page, of about this version"
        )


def _texts(query: PairQuery) -> dict[str, Any]:
    return {**query, "state": [*query.get("state", ())]}


def _error(status: int, detail: str, path: str) -> Exception:
    if status == 404 and "scorer" in detail:
        return UnknownScorerError(detail)
    if status == 404 and "cluster" in detail:
        return UnknownClusterError(detail)
    if status in (400, 422):
        return QueryError(detail)
    if status in (401, 403):
        return ApiError(f"/api/v1/{path} refuses these credentials ({status}); check DSF_API_TOKEN_FILE")
    return ApiError(f"/api/v1/{path}: {detail}")
