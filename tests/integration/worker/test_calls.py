"""Manual calls of a cycle, from Python and by `celery call`: the messages in the queue of a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError

from dsf import keys
from dsf.errors import AccessError, RoutingError, ScheduleError, UnknownClusterError
from dsf.redisacl.rules import hub_rules
from dsf.store.entries import Entry
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from dsf.worker.application import Application, make_app
from dsf.worker.calls import DEFAULT_SECONDS
from tests.support import forked
from tests.support.fixtures import SettingsFactory
from tests.support.redisserver import RedisServer

QUEUE = keys.spoke_queue("c1")


@pytest.fixture
def app(
    settings_factory: SettingsFactory, redis_url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> Application:
    # Programs that call a cycle do not load the agent's task of this name, which another test may have loaded.
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    Registry(client).put_cluster(ClusterRecord(name="c1"))
    Registry(client).put_scorer(ScorerRecord(name="sample", score_name="sample", interval=30, validity=90))
    ScheduleStore(client).upsert([Entry(cluster="c1", scorer="sample", score_name="sample", interval=30)])
    ScheduleStore(client).set_override("c1/sample", interval=200)
    return make_app(settings_factory(role="cli", redis_url=redis_url), is_imported=True)


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url, decode_responses=True)


def _arguments(client: redis.Redis) -> tuple[list[Any], dict[str, Any]]:
    (message,) = client.lrange(QUEUE, 0, -1)
    client.delete(QUEUE)
    args, kwargs, _ = json.loads(json.loads(message)["body"])
    return args, kwargs


def test_call_expires_after_the_interval_in_force(app: Application, client: redis.Redis) -> None:
    app.send_task("dsf.cycle", ["sample"], queue=QUEUE)
    args, kwargs = _arguments(client)
    assert args == ["sample"]
    assert kwargs["deadline"] == pytest.approx(time.time() + 200, abs=30)


@pytest.mark.parametrize(
    ("args", "options", "seconds"),
    [
        (["sample"], {"expires": 60}, 60),
        (["sample"], {"expires": timedelta(seconds=60)}, 60),
        (["sample"], {"expires": 3600}, 200),
        (["other"], {}, DEFAULT_SECONDS),
        ((), {"kwargs": {"scorer": "sample"}}, 200),
        (["sample", None, None], {}, 200),
    ],
)
def test_call_has_a_deadline(
    app: Application, client: redis.Redis, args: list[Any], options: dict[str, Any], seconds: float
) -> None:
    if isinstance(options.get("expires"), timedelta):
        options = options | {"expires": datetime.now(UTC) + options["expires"]}
    app.send_task("dsf.cycle", args, queue=QUEUE, **options)
    assert _arguments(client)[1]["deadline"] == pytest.approx(time.time() + seconds, abs=30)


@pytest.mark.parametrize("form", ["no zone", "text", "text without a zone"])
def test_call_expires_at_the_time_that_celery_reads(
    app: Application, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Celery reads a time without a zone as UTC, on a machine of any zone."""
    expires_at = datetime.now(UTC) + timedelta(seconds=100)
    naive = expires_at.replace(tzinfo=None)
    forms = {"no zone": naive, "text": expires_at.isoformat(), "text without a zone": naive.isoformat()}
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        app.send_task("dsf.cycle", ["sample"], queue=QUEUE, expires=forms[form])
    time.tzset()
    assert _arguments(client)[1]["deadline"] == pytest.approx(time.time() + 100, abs=30)


def test_deadline_of_the_caller_stays(app: Application, client: redis.Redis) -> None:
    app.send_task("dsf.cycle", ["sample", None, 12.0], queue=QUEUE)
    app.tasks["dsf.cycle"].apply_async(["sample"], {"deadline": 12.0}, queue=keys.spoke_queue("c1"))
    assert client.llen(QUEUE) == 2
    assert all("12.0" in message for message in client.lrange(QUEUE, 0, -1))


def test_every_way_to_call_reaches_the_queue(app: Application, client: redis.Redis) -> None:
    app.tasks["dsf.cycle"].apply_async(["sample"], queue=QUEUE)
    app.signature("dsf.cycle", args=["sample"]).set(queue=QUEUE).apply_async()
    app.signature("dsf.cycle", args=["sample"], queue=QUEUE).delay()
    assert client.llen(QUEUE) == 3
    assert all('\\"deadline\\"' in message for message in client.lrange(QUEUE, 0, -1))
    with pytest.raises(RoutingError, match="apply_async"):
        app.tasks["dsf.cycle"]("sample")


def test_unknown_cluster_is_refused_and_leaves_no_list(app: Application, client: redis.Redis) -> None:
    with pytest.raises(UnknownClusterError, match="no cluster 'typo' is accepted; registered: c1; the queue"):
        app.send_task("dsf.cycle", ["sample"], queue="spoke.typo")
    assert not client.exists("spoke.typo")


def test_celery_call_refuses_an_unknown_cluster(app: Application, redis_url: str, client: redis.Redis) -> None:
    del app
    environment = {"PATH": os.environ["PATH"], "DSF_REDIS_URL": redis_url}
    process = forked.celery(["call", "dsf.cycle", "--args", '["sample"]', "--queue", "spoke.typo"], environment)
    assert process.returncode != 0
    assert process.stderr.startswith("error: no cluster 'typo' is accepted; registered: c1")
    assert not client.exists("spoke.typo")


@pytest.mark.parametrize("queue", ["c1", "celery", "hub.results", "spoke."])
def test_queue_of_no_cluster_is_refused_with_the_right_form(app: Application, queue: str) -> None:
    with pytest.raises(RoutingError, match=r"is not the queue of a cluster; give queue='spoke\.<cluster>'"):
        app.send_task("dsf.cycle", ["sample"], queue=queue)


@pytest.mark.parametrize("options", [{"countdown": 60}, {"eta": datetime(2100, 1, 1, tzinfo=UTC)}])
def test_later_start_is_refused(app: Application, client: redis.Redis, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(RoutingError, match=f"dsf.cycle takes no {name}: an agent starts it at once"):
        app.tasks["dsf.cycle"].apply_async(["sample"], queue=QUEUE, **options)
    assert not client.exists(QUEUE)


def test_call_without_redis_raises_the_error_of_celery(settings_factory: SettingsFactory) -> None:
    app = make_app(settings_factory(role="cli", redis_url="redis://127.0.0.1:1/0"), is_imported=True)
    with pytest.raises(OperationalError):
        app.send_task("dsf.cycle", ["sample"], queue=QUEUE)


def test_result_is_refused_with_the_command_that_waits(app: Application) -> None:
    call = app.send_task("dsf.cycle", ["sample"], queue=QUEUE)
    for read_result in (call.get, call.ready, lambda: call.state):
        with pytest.raises(RoutingError, match="no result backend: `dsf rescore SCORER --cluster CLUSTER --wait`"):
            read_result()


def test_events_that_redis_denies_are_an_error(settings_factory: SettingsFactory) -> None:
    with RedisServer(aof=False) as server, server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "caller", "reset", "on", ">secret", *hub_rules("operator"))
        url = f"redis://caller:secret@127.0.0.1:{server.port}/0"
        app = make_app(settings_factory(role="cli", redis_url=url), is_imported=True)
        with app.connection_for_read() as connection, pytest.raises(AccessError, match="Flower shows them"):
            app.events.Receiver(connection).capture(timeout=30)


def test_periodic_task_is_refused_with_the_command(app: Application) -> None:
    with pytest.raises(ScheduleError, match="dsf schedule set SCORER --interval TIME"):
        app.add_periodic_task(10.0, app.signature("dsf.cycle", args=["sample"]))


@pytest.mark.parametrize("user", ["operator", "flower-tasks"])
def test_rights_of_the_caller_suffice(settings_factory: SettingsFactory, user: str) -> None:
    with RedisServer(aof=False) as server, server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "caller", "reset", "on", ">secret", *hub_rules(user))
        Registry(admin).put_cluster(ClusterRecord(name="c1"))
        ScheduleStore(admin).upsert([Entry(cluster="c1", scorer="sample", score_name="sample", interval=200)])
        url = f"redis://caller:secret@127.0.0.1:{server.port}/0"
        app = make_app(settings_factory(role="flower", redis_url=url), is_imported=True)
        app.send_task("dsf.cycle", ["sample"], queue=QUEUE)
        assert _arguments(admin)[1]["deadline"] == pytest.approx(time.time() + 200, abs=30)
        with pytest.raises(UnknownClusterError):
            app.send_task("dsf.cycle", ["sample"], queue="spoke.typo")
        assert admin.acl_log() == []


_PROGRAM = """
import logging
from celery import Celery, current_app, signals
own = Celery("theirs", broker="memory://")
from dsf.celery import app
app.send_task("dsf.cycle", ["sample"], queue="spoke.c1")
app.tasks["dsf.cycle"].apply_async(["sample"], queue="spoke.c1")
# The program's own application stays the current one, with its own worker and logging.
assert current_app.main == "theirs", current_app.main
assert not signals.setup_logging.receivers
own.WorkController(pool_cls="solo", concurrency=1)
assert "celery.chunks" in own.tasks
"""


@pytest.mark.parametrize("arguments", [[], ["-A", "theirs", "worker"]])
def test_program_that_imports_the_application_sends_ticks(
    app: Application, redis_url: str, client: redis.Redis, arguments: list[str]
) -> None:
    """Without DSF_ROLE, in a program and in the worker of another project."""
    del app
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
    code = f"import sys; sys.argv = {['celery', *arguments]!r}" if arguments else ""
    process = subprocess.run(
        [sys.executable, "-c", code + _PROGRAM],
        env=environment | {"DSF_REDIS_URL": redis_url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert client.llen(QUEUE) == 2
