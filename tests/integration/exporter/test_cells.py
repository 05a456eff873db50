"""One view over two cells: each has an exporter of its own, and the command line asks both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from typer.testing import CliRunner, Result

from dsf.cli.main import app
from dsf.client import Client
from dsf.clients import Clients
from dsf.errors import HttpError, UnknownScorerError
from dsf.fleet.verdict import Verdict
from tests.integration.exporter.fleet import SAMPLE, STATIC, Fleet
from tests.integration.exporter.server import ExporterProcess
from tests.integration.exporter.test_api import counted
from tests.support.redisserver import RedisServer

#: Nobody listens there.
AWAY = "http://127.0.0.1:1"


class Cells(NamedTuple):
    """Exporters: cell a has edge0, edge2, ... and cell b edge1, edge3, ..., of which edge1 fails."""

    a: ExporterProcess
    b: ExporterProcess

    def clients(self, *more: str) -> Clients:
        return Clients({url: Client(url) for url in (self.a.url, self.b.url, *more)})


@pytest.fixture
def cells(exporter: ExporterProcess, redis_client: redis.Redis, tmp_path: Path) -> Iterator[Cells]:
    with RedisServer() as server, ExporterProcess(server.url, tmp_path / "log") as other:
        client = redis.Redis.from_url(server.url, decode_responses=True)
        for first, redis_of_it in enumerate((redis_client, client)):
            fleet = Fleet(redis_of_it)
            fleet.registry.remove_scorer(STATIC)
            for number in range(first, 12, 2):
                fleet.registry.put_cluster(fleet.cluster_record(f"edge{number:02}"))
                fleet.entry(f"edge{number:02}", due_in=300)
                fleet.score(f"edge{number:02}")
                fleet.pair(f"edge{number:02}", value=number)
            if first:
                fleet.failure("edge01", message="invalid parameter query")
            counted(redis_of_it)
        yield Cells(exporter, other)
        client.close()


def dsf(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], prog_name="dsf")


def test_pages_of_both_are_one_list(cells: Cells) -> None:
    fleet = cells.clients()
    everything = fleet.scores()
    assert [score.cluster for score in everything.scores] == [f"edge{number:02}" for number in range(12)]
    assert (everything.total, everything.continue_) == (12, None)
    seen: list[str] = []
    after: str | None = None
    for _ in range(3):
        page = fleet.scores(limit=5, after=after)
        seen += [score.cluster for score in page.scores]
        after = page.continue_
    assert (seen, after) == ([f"edge{number:02}" for number in range(12)], None)
    assert [entry.cluster for entry in fleet.schedule(limit=3).entries] == ["edge00", "edge01", "edge02"]
    assert fleet.worst_scores(SAMPLE, 2).scores[0].cluster == "edge01"
    assert sorted(row.cluster for row in fleet.all_pairs(state=["ok"])) == sorted(
        f"edge{number:02}" for number in range(12) if number != 1
    )


def test_a_scorer_is_there_once_with_sums(cells: Cells) -> None:
    [scorer] = cells.clients().scorers().scorers
    assert (scorer.clusters.desired, scorer.clusters.succeeding, scorer.clusters.failing) == (12, 11, 1)
    assert [failure.cluster for failure in scorer.failures] == ["edge01"]


def test_what_one_cell_has_is_asked_of_it(cells: Cells) -> None:
    fleet = cells.clients()
    assert fleet.pair("edge01", SAMPLE).state is Verdict.FAILING
    assert fleet.cluster("edge02").name == "edge02"
    assert fleet.history("edge03", SAMPLE).cluster == "edge03"
    with pytest.raises(UnknownScorerError):
        fleet.scores(scorer="nobody")


def test_commands_show_the_whole_fleet(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_API_URL", f"{cells.a.url} {cells.b.url}")
    listed = dsf("scores", "-o", "json")
    assert listed.exit_code == 0
    assert len(json.loads(listed.stdout)["scores"]) == 12
    status = dsf("status", "-o", "json")
    assert status.exit_code == 1
    [scorer] = json.loads(status.stdout)["scorers"]
    assert scorer["clusters"]["desired"] == 12
    one = json.loads(dsf("status", SAMPLE, "-o", "json").stdout)
    assert (one["scoresTotal"], one["scores"][0]["cluster"]) == (12, "edge01")
    assert dsf("history", SAMPLE, "--cluster", "edge03").exit_code == 0
    assert len(json.loads(dsf("schedule", "list", "-o", "json").stdout)["entries"]) == 12


def test_a_cell_that_does_not_answer_is_named_and_the_others_are_shown(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = cells.clients(AWAY)
    assert len(fleet.scores().scores) == 12
    assert list(fleet.silent) == [AWAY]
    monkeypatch.setenv("DSF_API_URL", f"{cells.a.url} {AWAY}")
    for command in (("scores",), ("status",), ("schedule", "list"), ("history", SAMPLE, "--cluster", "edge02")):
        found = dsf(*command)
        assert found.exit_code == 1, command
        assert f"dsf: cell {AWAY} does not answer, its clusters are missing: " in found.stderr
        assert "edge02" in found.stdout or command[0] in ("status", "history")
        assert found.stdout
    # Whether the one that is silent has this cluster is not known: no reason for `--watch` to end.
    found = dsf("history", SAMPLE, "--cluster", "edge01")
    assert (found.exit_code, "is accepted" in found.stderr) == (1, False)
    with pytest.raises(HttpError):
        Clients({url: Client(url) for url in (cells.a.url, AWAY)}).cluster("edge01")
    monkeypatch.setenv("DSF_API_URL", f"{AWAY} {AWAY}/x")
    assert dsf("scores").exit_code == 1
    with pytest.raises(HttpError):
        Clients({AWAY: Client(AWAY)}).scores()
