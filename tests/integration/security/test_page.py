"""The page can do all of its work as `dsf-web`, without a refused command."""

from __future__ import annotations

import re
from pathlib import Path

import redis

from dsf import keys
from dsf.fleet import changes
from dsf.store.notices import CLUSTER_SET, ClusterNotice, ConditionNotice, Notices, ScorerNotice
from dsf.web.actions import list_acts
from dsf.web.views import VIEWS
from tests.integration.exporter.fleet import SAMPLE, STATIC, Fleet
from tests.integration.web.test_acts import TOKEN, Visitor
from tests.support.secureredis import SecureRedis
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess

FIELDS = {"note": "why", "until": "2999-01-01T00:00", "seconds": "7", "hours": "1", "every": "300", "other": STATIC}
NAMES = {"scorer": SAMPLE, "cluster": "worker01", "namespace": "n", "name": "n"}
QUERIES = f"""
/find?q=state:failing /find?q=reason:bad_*+cluster:worker* /find?q=item:n1 /find?q=run:x /find?q=set:eu /parts?by=env
/?set=eu&label=env=prod /changes?scorer={SAMPLE}&cluster=worker01 /scorers/broken /readyz /openapi.json /docs
/api/v1/summary /api/v1/scorers /api/v1/scorers/{SAMPLE} /api/v1/clusters /api/v1/clusters?cluster=worker*
/api/v1/clusters/worker01 /api/v1/pairs?state=failing /api/v1/pairs?reason=bad_query /api/v1/pairs/worker01/{SAMPLE}
/api/v1/scores /api/v1/scores?state=ok /api/v1/schedule /api/v1/history/worker01/{SAMPLE} /api/v1/updates?since=0
""".split()


def seed(admin: redis.Redis) -> None:
    """Something of everything."""
    fleet = Fleet(admin)
    for cluster in ("worker01", "worker02"):
        fleet.entry(cluster)
        fleet.score(cluster)
        Notices(admin).write_cluster(ClusterNotice(name=cluster, labels={CLUSTER_SET: "eu", "env": "prod"}))
    fleet.cycle("worker01", timings={"fetch": 0.1})
    fleet.failure("worker02")
    fleet.entry("worker01", STATIC)
    fleet.set_skips("worker01", "inactive", 5, scorer=STATIC)
    condition = ConditionNotice(type="Healthy", status="False", reason="Unreachable", message="no", since=1.0)
    Notices(admin).write_scorer(ScorerNotice(name="broken", conditions=(condition,)))


def test_page_user_is_denied_nothing(secure_redis: SecureRedis, tmp_path: Path) -> None:
    admin = secure_redis.client()
    seed(admin)
    # A server that was started a moment ago knows no script yet.
    admin.script_flush()
    (tmp_path / "token").write_text(TOKEN)
    settings = {"redis_ca_file": secure_redis.ca.cert, "web_auth": "token", "client_token_file": tmp_path / "token"}
    with WebProcess(secure_redis.hub_url("web"), tmp_path / "log", **settings) as page:
        visitor = Visitor(page)
        assert visitor.post("/login", visitor.get("/login"), token=TOKEN)[0] == 303
        # An outcome is looked at when there is one, below.
        paths = [view.path.format(**NAMES) for view in VIEWS if "{ident}" not in view.path]
        for path in (*paths, *QUERIES):
            visitor.headers = {"Authorization": f"Bearer {TOKEN}"} if path.startswith("/api") else {}
            text = visitor.get(path)
            assert visitor.status == 200, (path, text)
        visitor.headers = {}
        for act in list_acts():
            # A comparison waits for the backtest before it.
            location = wait_for(lambda act=act: _do(visitor, act), 30, act)  # type: ignore[misc]
            visitor.get(location)
            assert visitor.status == 200, location
        assert {change.action.value for change in changes.read_changes(admin).changes} == set(list_acts())
        assert admin.llen(keys.spoke_queue("worker01")) == 1
        assert visitor.post("/logout", visitor.get("/"))[0] == 303
        assert admin.acl_log() == []
        assert "NoPermission" not in page.log


def _do(visitor: Visitor, act: str) -> str:
    """Do it; returns where the page leads then."""
    form = visitor.get(f"/act/{act}?scorer={SAMPLE}&cluster=worker01")
    status, text, location = visitor.post(f"/act/{act}", form, **FIELDS)
    assert status == 303, (act, re.findall(r'role="alert".*', text))
    return location
