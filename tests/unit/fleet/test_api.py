"""The JSON API, its typed client, and commands that query it: in one process, on the store in memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import redis
import requests
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from dsf import keys
from dsf.cli.main import app
from dsf.errors import HttpError, QueryError, UnknownClusterError, UnknownScorerError
from dsf.fleet.api import add_problems, make_router
from dsf.fleet.client import Client
from dsf.fleet.queries import FleetQueries
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import ScoreList
from dsf.messages import make_run_id
from dsf.store.notices import ClusterNotice, ConditionNotice, Notices, ScorerNotice
from dsf.store.registry import ScorerRecord
from dsf.store.schedule import ScheduleStore
from tests.integration.exporter.fleet import SAMPLE, STATIC, Fleet, good_fleet
from tests.support.memorystore import memory_client
from tests.support.scoringservices import served
from tests.support.wait import PATIENCE, wait_for


class ApiServer(NamedTuple):
    """The API in a thread of this process."""

    url: str

    def get(self, path: str, **headers: str) -> requests.Response:
        """Send GET on a new connection, for a response without compression."""
        with requests.Session() as session:
            session.trust_env = False
            return session.get(self.url + path, headers={"Accept-Encoding": "identity", **headers}, timeout=60)


@pytest.fixture
def store() -> redis.Redis:
    """A client of the empty store."""
    return memory_client()


@pytest.fixture
def server(store: redis.Redis) -> Iterator[ApiServer]:
    """The API of the store."""
    app = FastAPI()
    app.include_router(make_router(FleetQueries(store)))
    add_problems(app)
    with served(app) as url:
        yield ApiServer(url)


@pytest.fixture
def fleet(store: redis.Redis) -> Fleet:
    """Twelve clusters: one fails, one never ran, two are skipped, the others are ok."""
    fleet = good_fleet(store, due_in=300)
    for number in range(10):
        fleet.registry.put_cluster(fleet.make_cluster_record(f"edge{number}"))
        # The entries are not overdue while the test lasts.
        fleet.entry(f"edge{number}", due_in=300)
        if number:
            fleet.score(f"edge{number}")
            fleet.set_pair_fields(f"edge{number}", value=number)
    fleet.failure("edge1", message="invalid parameter query")
    fleet.set_skips("edge2", "queue_full", 3)
    fleet.set_skips("edge3", "queue_full", 5)
    return fleet


@pytest.fixture
def client(server: ApiServer, fleet: Fleet) -> Client:
    assert fleet
    return Client(server.url)


def test_summary_counts_every_pair_once(client: Client) -> None:
    summary = client.summary()
    assert (summary.pairs, summary.clusters) == (12, 12)
    states = summary.states
    assert (states.ok, states.failing, states.never, states.skipped) == (8, 1, 1, 2)
    [sample] = [scorer for scorer in summary.scorers if scorer.name == SAMPLE]
    assert {(group.state, group.stage, group.reason, group.clusters) for group in sample.reasons} == {
        (Verdict.FAILING, "fetch", "bad_query", 1),
        (Verdict.SKIPPED, "", "queue_full", 2),
    }
    assert sample.ages.count == 11
    assert sum(bar.count for bar in sample.ages.histogram) == 11


def test_pairs_are_paged_worst_first(client: Client) -> None:
    first = client.pairs(limit=5)
    assert first.total == 12
    assert [row.state for row in first.pairs] == ["failing", "skipped", "skipped", "never", "ok"]
    assert first.pairs[0].failure is not None
    second_page = client.pairs(limit=5, cursor=first.cursor)
    last = client.pairs(limit=5, cursor=second_page.cursor)
    assert last.cursor is None
    rows = [*first.pairs, *second_page.pairs, *last.pairs]
    assert len({(row.cluster, row.scorer) for row in rows}) == 12
    assert [row.cluster for row in client.all_pairs(state=["skipped"], cluster="edge*")] == ["edge2", "edge3"]
    assert [row.cluster for row in client.all_pairs(reason="bad_query")] == ["edge1"]
    assert [row.cluster for row in client.all_pairs(cluster="edge4")] == ["edge4"]


def test_client_returns_one_scorer_one_cluster_and_one_pair(client: Client) -> None:
    scorer = client.scorer(SAMPLE)
    assert [top_pair.cluster for top_pair in scorer.top[:2]] == ["worker01", "worker02"] or scorer.top[0].value >= 9
    assert scorer.bottom[0].value <= scorer.top[0].value
    assert client.clusters().clusters[0].name == "edge1"
    assert {cluster.name for cluster in client.all_clusters("worker*")} == {"worker01", "worker02"}
    cluster = client.cluster("worker01")
    assert cluster.scorers == {SAMPLE: Verdict.OK}
    pair = client.pair("worker01", SAMPLE)
    assert [(item.name, item.value) for item in pair.score_items] == [("n1", 12), ("n2", -4)]
    assert pair.books.scheduled == 7
    assert len(pair.cycles) == 1


def test_updates_return_each_change_once(client: Client, fleet: Fleet) -> None:
    before = client.summary().sequence
    assert client.updates(before).pairs == []
    fleet.failure("worker01")
    changed = client.updates(before)
    assert changed.pairs == [("worker01", SAMPLE)]
    assert client.updates(changed.sequence).pairs == []


def test_history_pages_are_complete_while_cycles_end(client: Client, server: ApiServer, fleet: Fleet) -> None:
    history = keys.history_key("edge0", SAMPLE)
    runs = [make_run_id(fleet.now + number) for number in range(7)]
    for run in runs[:6]:
        fleet.cycle("edge0", run=run)

    def page(cursor: str = "") -> tuple[list[str], str | None]:
        cursor_parameter = f"&cursor={cursor}" if cursor else ""
        response = server.get(f"/api/v1/history/edge0/{SAMPLE}?limit=2{cursor_parameter}").json()
        return [cycle["runId"] for cycle in response["cycles"]], response["cursor"]

    run_ids, cursor = page()
    assert (run_ids, cursor) == (runs[5:3:-1], runs[4])
    # A further run ends, and the oldest of the first page is trimmed: no run is listed twice or left out.
    fleet.cycle("edge0", run=runs[6])
    assert page(runs[4]) == (runs[3:1:-1], runs[2])
    fleet.redis.lrem(history, 1, fleet.redis.lindex(history, 4) or "")
    assert page(runs[2]) == (runs[1::-1], None)
    fleet.redis.delete(history)
    for number in range(120):
        fleet.cycle("edge0", run=make_run_id(fleet.now + number))
    complete_history = client.history("edge0", SAMPLE)
    assert (
        len({cycle.run_id for cycle in complete_history.cycles}),
        complete_history.total,
        complete_history.cursor,
    ) == (120, 120, None)


def test_updates_are_paged(server: ApiServer, client: Client) -> None:
    first = server.get("/api/v1/updates?since=0&limit=5").json()
    assert (len(first["pairs"]), first["more"]) == (5, True)
    repeated_updates = client.updates(0, limit=5)
    assert ([list(pair) for pair in repeated_updates.pairs], repeated_updates.has_more) == (first["pairs"], True)
    later_updates = client.updates(first["sequence"])
    assert {tuple(pair) for pair in first["pairs"]} | set(later_updates.pairs) == set(client.updates(0).pairs)


def test_scorers_are_paged_with_and_without_a_model(client: Client, server: ApiServer, fleet: Fleet) -> None:
    names = sorted([SAMPLE, STATIC, *(f"more-{number}" for number in range(203))])
    for name in names:
        if name.startswith("more"):
            fleet.registry.put_scorer(ScorerRecord(name=name, score_name=name, interval=10, validity=300))
    for number in range(3):
        condition = ConditionNotice(type="Healthy", status="False", reason="Unreachable", since=1.0)
        Notices(fleet.redis).write_scorer(ScorerNotice(name=f"unready-{number}", conditions=(condition,)))
    summary = client.summary()
    assert (len(summary.scorers), summary.scorers_total, summary.states.total) == (200, 205, 12)
    # The worst is first.
    short = server.get("/api/v1/summary?limit=1").json()
    assert [scorer["name"] for scorer in short["scorers"]] == [SAMPLE]
    assert ([unready_scorer["name"] for unready_scorer in short["unready"]], short["unreadyTotal"]) == (
        ["unready-0"],
        3,
    )
    assert server.get("/api/v1/summary?limit=0").status_code == 422
    first = server.get("/api/v1/scorers?limit=2").json()
    assert [scorer["name"] for scorer in first["scorers"]] == names[:2]
    assert (first["total"], first["cursor"]) == (205, names[1])
    assert [scorer.name for scorer in client.scorers().scorers] == names
    last = server.get(f"/api/v1/scorers?cursor={names[202]}").json()
    assert ([scorer["name"] for scorer in last["scorers"]], last["cursor"]) == (names[203:], None)
    [sample] = client.scorers(SAMPLE).scorers
    assert sample.pairs == sample.states.total == 12


def test_scores_are_filtered_by_state(client: Client, server: ApiServer) -> None:
    report = server.get("/api/v1/scores?state=skipped&state=failing").json()
    assert [score["cluster"] for score in report["scores"]] == ["edge1", "edge2", "edge3"]
    pages = client.scores(limit=7)
    assert (len(pages.scores), pages.total) == (7, 12)
    assert len(client.scores().scores) == 12


def test_no_row_is_lost_between_pages_of_pages(server: ApiServer, fleet: Fleet) -> None:
    """A response has a page of rows, whatever the request's limit is, and the client requests the rest."""
    for number in range(600):
        fleet.registry.put_cluster(fleet.make_cluster_record(f"more{number:03}"))
        fleet.entry(f"more{number:03}", due_in=300)
    client = Client(server.url)
    for ask in (client.scores, client.schedule):
        clusters: list[str] = []
        after: str | None = None
        while True:
            page = ask(limit=300, after=after)
            rows = page.scores if isinstance(page, ScoreList) else page.entries
            assert len(rows) <= 300
            clusters += [row.cluster for row in rows]
            if (after := page.continue_) is None:
                break
        assert len(clusters) == len(set(clusters)) == 612


def test_paused_pairs_are_marked_in_every_list(
    server: ApiServer, fleet: Fleet, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ScheduleStore(fleet.redis)
    store.set_override(f"worker01/{SAMPLE}", paused=True)
    [score] = client.scores(cluster="worker01").scores
    # A score of a paused pair may be used until it expires.
    assert (score.state, score.fresh) == (Verdict.PAUSED, True)
    assert [score.cluster for score in client.scores().scores if score.state is Verdict.PAUSED] == ["worker01"]
    paused_scores = server.get("/api/v1/scores?state=paused").json()["scores"]
    assert [(score["cluster"], score["state"]) for score in paused_scores] == [("worker01", "paused")]
    store.set_override(f"*/{SAMPLE}", paused=True)
    monkeypatch.setenv("DSF_API_URL", server.url)
    result = CliRunner().invoke(app, ["status", SAMPLE], prog_name="dsf")
    assert result.stdout.splitlines()[1].split()[1] == "paused"


def test_status_output_is_the_same_with_the_api(
    server: ApiServer, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status includes a DynamicScorer that could not run yet, and a demo that was selected for one command."""
    fleet.registry.remove_scorer(STATIC)
    for cluster in ("edge0", "edge1", "edge2", "edge3"):
        fleet.redis.hdel(keys.ENTRIES, f"{cluster}/{SAMPLE}")
    monkeypatch.setenv("DSF_API_URL", server.url)

    def status(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["status", *arguments], prog_name="dsf")

    assert status().exit_code == 0
    condition = ConditionNotice(
        type="Resolved", status="False", reason="MissingInterval", message="no interval", since=fleet.now
    )
    Notices(fleet.redis).write_scorer(ScorerNotice(name="broken", namespace="n", conditions=[condition]))
    for arguments in ((), ("broken",)):
        result = status(*arguments)
        assert result.exit_code == 1
        assert "broken: Resolved=False (MissingInterval): no interval" in result.stdout
    assert status(SAMPLE).exit_code == 0
    Notices(fleet.redis).write_scorer(ScorerNotice(name=SAMPLE, namespace="n", conditions=[condition]))
    assert status(SAMPLE).exit_code == 1
    assert f"{SAMPLE}: Resolved=False" in status().stdout
    unknown = status("nobody")
    assert isinstance(unknown.exception, UnknownScorerError) or unknown.exit_code == 1
    unknown_demo = status("--demo", "nosuchdemo")
    assert "nosuchdemo" in f"{unknown_demo.output} {unknown_demo.exception}"


def test_pages_of_large_results_stay_below_one_megabyte(server: ApiServer, fleet: Fleet, client: Client) -> None:
    many = [({"node": f"node-{number}", "meta": "x" * 100}, 1.0) for number in range(3000)]
    for number in range(1, 10):
        fleet.score(f"edge{number}", results=many)
    response = server.get("/api/v1/scores")
    assert len(response.content) < 1_000_000
    assert response.json()["continue"] is not None
    # Page by page all of them are there.
    assert len(client.scores().scores) == 12


def test_etag_stays_while_nothing_changes(server: ApiServer, fleet: Fleet) -> None:
    for path in ("/api/v1/summary", "/api/v1/pairs", "/api/v1/scores", f"/api/v1/pairs/worker01/{SAMPLE}"):
        first = server.get(path)
        tag = first.headers["ETag"]
        assert tag.startswith('W/"')
        revalidated = server.get(path, **{"If-None-Match": tag})
        assert (revalidated.status_code, revalidated.content) == (304, b"")
        fleet.score("worker01", age=1)
        fleet.failure("worker01", in_a_row=int(time.time() * 1000) % 1000 + 2)
        assert server.get(path, **{"If-None-Match": tag}).status_code == 200


def test_etag_changes_with_fields_that_resemble_an_age(server: ApiServer, fleet: Fleet) -> None:
    def tag_of(path: str) -> str:
        return server.get(path).headers["ETag"]

    summary = tag_of("/api/v1/summary")
    fleet.entry("edge5", due_in=-60)
    assert server.get("/api/v1/summary").json()["overdue"] == 1
    late = tag_of("/api/v1/summary")
    assert late != summary
    for name in ("overdue", "ageSeconds", "lagSeconds"):
        tags = set()
        for value in ("1", "2"):
            Notices(fleet.redis).write_cluster(ClusterNotice(name="edge5", labels={name: value}))
            tags.add(tag_of("/api/v1/clusters/edge5"))
        assert len(tags) == 2, name


def test_responses_are_compressed_on_request(server: ApiServer, fleet: Fleet) -> None:
    assert fleet
    packed = server.get("/api/v1/pairs", **{"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert len(packed.json()["pairs"]) == 12


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (lambda client: client.scorer("nobody"), UnknownScorerError),
        (lambda client: client.cluster("nowhere"), UnknownClusterError),
        (lambda client: client.pairs(state=["fine"]), QueryError),
        (lambda client: client.pairs(cursor="nonsense"), QueryError),
        (lambda client: client.pairs(cursor="0/nan/a/b"), QueryError),
        (lambda client: client.pairs(cursor="0/-inf/a/b"), QueryError),
        (lambda client: client.pairs(cursor="-1/0.0/a/b"), QueryError),
        (lambda client: client.pairs(cursor="9/0.0/a/b"), QueryError),
        (lambda client: client.pairs(cursor="0/1e11/a/b"), QueryError),
        (lambda client: client.pairs(cursor="-3.0/c-0100"), QueryError),
        (lambda client: client.clusters(cursor="0/1.7e9/s/c"), QueryError),
        (lambda client: client.clusters(cursor="nan/c"), QueryError),
        (lambda client: client.clusters(cursor="0.0/"), QueryError),
        (lambda client: client.pairs(limit=0), QueryError),
        (lambda _: Client("http://127.0.0.1:1").summary(), HttpError),
    ],
)
def test_client_raises_a_named_error_for_invalid_requests(
    client: Client, question: Callable[[Client], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        question(client)


def test_server_without_our_api_is_reported_by_the_cli(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_API_URL", server.url + "/docs")
    for command in (("status",), ("history", SAMPLE, "-c", "worker01")):
        result = CliRunner().invoke(app, command, prog_name="dsf")
        assert result.exit_code == 1
        assert "does not answer as /api/v1 of DSF does (HTTP 404): DSF_API_URL must be the address" in result.stderr


def test_lists_of_scores_of_one_client_are_read_a_few_at_a_time(
    server: ApiServer, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one holds megabytes of scores: forty of them took a gigabyte."""
    read_scores, may_end, running = FleetQueries.scores, threading.Event(), list[int]()

    def wait_and_read(queries: FleetQueries, *arguments: Any, **options: Any) -> ScoreList:
        running.append(1)
        assert may_end.wait(PATIENCE)
        return read_scores(queries, *arguments, **options)

    monkeypatch.setattr(FleetQueries, "scores", wait_and_read)
    with ThreadPoolExecutor(20) as pool:
        requests_of_one_client = [pool.submit(server.get, "/api/v1/scores?state=ok") for _ in range(20)]
        try:
            # The requests beyond the limit are refused at once.
            wait_for(lambda: sum(request.done() for request in requests_of_one_client) == 12, PATIENCE, "refusals")
            assert len(running) == 2
            assert server.get("/api/v1/summary").status_code == 200
        finally:
            may_end.set()
        responses = [request.result() for request in requests_of_one_client]
    assert Counter(response.status_code for response in responses) == {200: 8, 503: 12}
    refusal = next(response.json() for response in responses if response.status_code == 503)
    assert refusal["title"] == "Busy"
    assert "too much at a time" in refusal["detail"]
