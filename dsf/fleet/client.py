"""A typed client of the read-only JSON API, `/api/v1` of the page, without rights in Redis.

    from dsf.fleet.client import Client

    fleet = Client("http://exporter.example:8080")
    for row in fleet.all_pairs(state=["failing"]):
        print(row.cluster, row.scorer, row.failure.reason if row.failure else "")

Times in responses are those of the server's clock. `Client.offset` is its difference to the clock of this machine.
Methods raise UnknownScorerError or UnknownClusterError for an unregistered name, QueryError for a query that the server
rejects as invalid, HttpError if the server cannot be reached, and ApiError for other error responses.
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
from dsf.http.access import make_bearer_access
from dsf.http.client import Response, probe

_View = TypeVar("_View", bound=View)
_Value = str | int | list[str] | None

#: Maximum bytes of a response. The server sends at most about a megabyte.
_MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
#: Type of a page -> name of the field with rows, name of the field with the cursor, and maximum number of rows.
_PAGED_LISTS: Final[dict[type[View], tuple[str, str, int]]] = {
    ChangeList: ("changes", "continue_", 200),
    ClusterPage: ("clusters", "cursor", 200),
    HistoryList: ("cycles", "cursor", 100),
    PairPage: ("pairs", "cursor", 200),
    ScheduleList: ("entries", "continue_", 10_000),
    ScoreList: ("scores", "continue_", 10_000),
    ScorerPage: ("scorers", "cursor", 200),
}


class PairQuery(TypedDict, total=False):
    """Filter of pairs. `cluster` may contain the wildcards `*` and `?`."""

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
        fetch: Callable[[str, float], Response] | None = None,
    ) -> None:
        """Create a client of the server at `url`, with or without `/api/v1`.

        `token` is sent as bearer token. `timeout` is the timeout of a response in seconds. `fetch` gets a URL and a
        timeout in seconds, and sends the request in place of this client.
        """
        self._base = url.rstrip("/").removesuffix("/api/v1") + "/api/v1/"
        self._token = token
        self._timeout = timeout
        self._fetch = fetch or self._fetch_directly
        #: Server's time minus this machine's time in seconds, according to the newest response.
        self.offset = 0.0

    def time(self) -> tuple[int, int]:
        """Return the server's time as seconds and microseconds since 1970, like a `dsf.process.hubclock.Server`."""
        at = self.clusters(limit=1).at.timestamp()
        return int(at), int(at % 1 * 1e6)

    def summary(self) -> FleetOverview:
        """Return the overview of the whole fleet, with the 200 worst scorers. `scorers` returns all scorers."""
        return self._get(FleetOverview, "summary")

    def scorers(self, scorer: str | None = None) -> ScorerPage:
        """Return all registered scorers with their states, or only the named scorer."""
        return self._gather(ScorerPage, "scorers", scorer=scorer)

    def scorer(self, name: str) -> ScorerDetail:
        """Return the details of a scorer on all its clusters."""
        return self._get(ScorerDetail, f"scorers/{quote(name, safe='')}")

    def clusters(self, cluster: str | None = None, *, limit: int = 100, cursor: str | None = None) -> ClusterPage:
        """Return clusters, worst first. `cluster` may contain the wildcards `*` and `?`."""
        return self._get(ClusterPage, "clusters", cluster=cluster, limit=limit, cursor=cursor)

    def all_clusters(self, cluster: str | None = None) -> Iterator[ClusterOverview]:
        """Yield all clusters, worst first. `cluster` is that of `clusters`."""
        for page in self._iterate_pages(ClusterPage, "clusters", cluster=cluster):
            yield from page.clusters

    def cluster(self, name: str) -> ClusterDetail:
        """Return the details of a cluster."""
        return self._get(ClusterDetail, f"clusters/{quote(name, safe='')}")

    def pairs(self, *, limit: int = 100, cursor: str | None = None, **query: Unpack[PairQuery]) -> PairPage:
        """Return pairs of scorer and cluster, worst first."""
        return self._get(PairPage, "pairs", **_make_parameters(query), limit=limit, cursor=cursor)

    def all_pairs(self, **query: Unpack[PairQuery]) -> Iterator[PairRow]:
        """Yield all pairs of scorer and cluster that match the query, worst first."""
        for page in self._iterate_pages(PairPage, "pairs", **_make_parameters(query)):
            yield from page.pairs

    def pair(self, cluster: str, scorer: str) -> PairDetail:
        """Return the details of a scorer on a cluster, with its newest cycles."""
        return self._get(PairDetail, f"pairs/{quote(cluster, safe='')}/{quote(scorer, safe='')}")

    def updates(self, since: int, *, limit: int | None = None) -> Changes:
        """Return the pairs that changed after the number `since` (`sequence` of the summary).

        Returns at most `limit` pairs, and at most 5,000.
        """
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
        """Return the newest scores, sorted by cluster and scorer, or only those in `states`, worst first.

        Returns at most `limit` scores (None: all). `after` is `continue` of the previous response.
        """
        return self._gather(ScoreList, "scores", limit, after, cluster=cluster, scorer=scorer, state=[*states])

    def schedule(
        self,
        cluster: str | None = None,
        scorer: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> ScheduleList:
        """Return the entries of the schedule. Filters and pages are those of `scores`."""
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
        """Return users' actions, newest first, from the time `since` (unix seconds) on.

        Pages are those of `scores`. Only the page serves this list.
        """
        start = None if since is None else repr(max(0.0, since))
        return self._gather(ChangeList, "changes", limit, after, scorer=scorer, cluster=cluster, since=start)

    def _gather(
        self,
        model: type[_View],
        path: str,
        limit: int | None = None,
        after: str | None = None,
        **parameters: _Value,
    ) -> _View:
        """Return the first page, with the rows of the following pages added, up to `limit` rows (None: all)."""
        rows_field, cursor_field, _ = _PAGED_LISTS[model]
        pages = list(self._iterate_pages(model, path, limit, after, **parameters))
        rows = [row for page in pages for row in getattr(page, rows_field)]
        return pages[0].model_copy(update={rows_field: rows, cursor_field: getattr(pages[-1], cursor_field)})

    def _iterate_pages(
        self,
        model: type[_View],
        path: str,
        limit: int | None = None,
        after: str | None = None,
        **parameters: _Value,
    ) -> Iterator[_View]:
        """Yield the pages of a list up to `limit` rows (None: all)."""
        rows_field, cursor_field, max_rows = _PAGED_LISTS[model]
        remaining_rows = float("inf") if limit is None else limit
        while True:
            page = self._get(model, path, cursor=after, limit=int(min(remaining_rows, max_rows)), **parameters)
            yield page
            # Count the rows, because a page with long rows has fewer than requested.
            remaining_rows -= len(getattr(page, rows_field))
            after = getattr(page, cursor_field)
            if after is None or remaining_rows <= 0:
                return

    def _get(self, model: type[_View], path: str, **parameters: _Value) -> _View:
        """Request a path and return the parsed response."""
        query = urlencode({name: value for name, value in parameters.items() if value not in (None, [])}, doseq=True)
        url = f"{self._base}{path}" + (f"?{query}" if query else "")
        response = self._fetch(url, self._timeout)
        if response.status != 200:
            raise self._make_error(response.status, response.body, path)
        try:
            view = model.model_validate_json(response.body)
        except ValidationError as error:
            raise self._make_wrong_server_error(path, f"{error.error_count()} mistakes") from None
        if isinstance(at := getattr(view, "at", None), datetime):
            self.offset = at.timestamp() - time.time()
        return view

    def _fetch_directly(self, url: str, timeout: float) -> Response:
        deadline = time.monotonic() + timeout
        return probe(url, deadline=deadline, max_bytes=_MAX_RESPONSE_BYTES, access=make_bearer_access(self._token))

    def _make_error(self, status: int, body: bytes, path: str) -> Exception:
        """Return the error for a response with this status."""
        try:
            detail = Problem.model_validate_json(body).detail
        except ValidationError:
            if 400 <= status < 500 and status not in (401, 403):
                return self._make_wrong_server_error(path, f"HTTP {status}")
            # Other statuses do not prove a wrong server, because a proxy in front of the right one may return them.
            detail = f"HTTP {status}"
        return _map_status(status, detail, path)

    def _make_wrong_server_error(self, path: str, cause: str) -> ApiError:
        return ApiError(
            f"{self._base}{path} does not answer as /api/v1 of DSF does ({cause}): DSF_API_URL must be the address of "
            "the page, of about this version"
        )


def _make_parameters(query: PairQuery) -> dict[str, Any]:
    return {**query, "state": [*query.get("state", ())]}


def _map_status(status: int, detail: str, path: str) -> Exception:
    """Return the error of this package for an HTTP status and its detail."""
    if status == 404 and "scorer" in detail:
        return UnknownScorerError(detail)
    if status == 404 and "cluster" in detail:
        return UnknownClusterError(detail)
    if status in (400, 422):
        return QueryError(detail)
    if status in (401, 403):
        return ApiError(f"/api/v1/{path} refuses these credentials ({status}); check DSF_API_TOKEN_FILE")
    return ApiError(f"/api/v1/{path}: {detail}")
