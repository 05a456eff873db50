"""No surface of the whole stack shows the user information or the query of a URL that a scorer has.

Surfaces are logs, Redis, objects that the hub writes, Events, metrics, Flower, the JSON API, the page, and commands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from dsf.store.pairs import Pairs
from tests.integration.security.fleet import Fleet, replace
from tests.integration.security.traces import contents, files, pages, secrets_in, served, traffic
from tests.support.httpserver import Exchange, ScriptedServer, answer, matrix

_GROUP = "dynamic-scoring.open-cluster-management.io/v1alpha1"
_PASSWORD, _TOKEN = "canary-password-5b1d7e", "canary-token-90ac41"
SECRETS = {"password of a URL": _PASSWORD, "query of a URL": _TOKEN}
_SERIES = {"metric": {"__name__": "up", "node": "n1"}, "values": [[1718600000, "1"], [1718600060, "0.5"]]}
_RESULTS = {"results": [{"metric": {"node": "n1"}, "score": 12.5}]}
#: Name of a scorer -> whether the hub registers it.
_SCORERS: Mapping[str, bool] = {
    "good-urls": True,
    "failing-source": True,
    "moved-source": True,
    "away-source": True,
    "failing-scoring": True,
    "moved-scoring": True,
    "odd-scoring": True,
    "remote-config": True,
    "user-in-source": False,
    "user-in-scoring": False,
    "user-in-config-url": False,
}


def _moved(exchange: Exchange) -> None:
    exchange.send(b"", 302, Location=f"http://user:{_PASSWORD}@127.0.0.1:1{exchange.http.path}")


class Urls:
    """A fleet of one cluster with scorers whose URLs have secrets, and the servers of these URLs."""

    def __init__(self, fleet: Fleet, server: ScriptedServer) -> None:
        self.fleet = fleet
        self.server = server
        server.script(matrix(_SERIES), path="/good")
        server.script(answer({"status": "error", "error": "bad query"}, 400), path="/failing")
        server.script(_moved, path="/moved")
        server.script(answer(_RESULTS), path="/scoring")
        server.script(answer("nonsense"), path="/odd")
        server.script(answer("down", 500), path="/failing-scoring")
        server.script(answer(self._remote_config()), path="/config")
        replace(fleet.manifests / "urls.yaml", yaml.safe_dump_all(map(self._scorer, _SCORERS)))

    def _remote_config(self) -> dict[str, Any]:
        """Return the /config of `remote-config`."""
        return {
            "name": "remote-config",
            "description": "its URLs are those of /config",
            "source": {
                "type": "Prometheus",
                "host": self.server.url,
                "path": f"/good?token={_TOKEN}",
                "params": {"query": "up", "range": 600, "step": 60},
            },
            "scoring": {
                "host": self.server.url,
                "path": f"/scoring?token={_TOKEN}",
                "params": {"name": "remote-config-score", "interval": 5},
            },
        }

    def _scorer(self, name: str) -> dict[str, Any]:
        url, user = self.server.url, self.server.url.replace("//", f"//user:{_PASSWORD}@")
        source = {"failing-source": "/failing", "moved-source": "/moved"}.get(name, "/good")
        scoring = {"failing-scoring": "/failing-scoring", "moved-scoring": "/moved", "odd-scoring": "/odd"}
        hosts = {"user-in-source": user, "away-source": "http://127.0.0.1:1"}
        return {
            "apiVersion": _GROUP,
            "kind": "DynamicScorer",
            "metadata": {"name": name},
            "spec": {
                "description": "URLs with secrets",
                "configURL": f"{user if name == 'user-in-config-url' else url}/config?token={_TOKEN}",
                "configSyncMode": "Full" if name == "remote-config" else "None",
                "source": {
                    "type": "Prometheus",
                    "host": hosts.get(name, url),
                    "path": f"{source}?token={_TOKEN}",
                    "params": {"query": "up", "range": 600, "step": 60},
                },
                "scoring": {
                    "host": user if name == "user-in-scoring" else url,
                    "path": f"{scoring.get(name, '/scoring')}?token={_TOKEN}",
                    "params": {"name": f"{name}-score", "interval": 5},
                },
            },
        }

    def await_outcomes(self) -> None:
        """Wait until each scorer has run or is refused."""
        states = Pairs(self.fleet.admin)

        def has_run(name: str) -> bool:
            state = states.read_state("c1", name)
            return state.count("ok") + state.count("error") > 0

        for name, is_registered in _SCORERS.items():
            if is_registered:
                self.fleet.until(lambda name=name: has_run(name), f"an outcome of {name}", 60)
            else:
                file = self.fleet.out / "dynamicscorers" / f"{name}.yaml"
                self.fleet.until(
                    lambda file=file: file.exists() and "InvalidURL" in file.read_text(), f"{name} to be refused", 60
                )
        assert states.read_state("c1", "good-urls").count("ok")
        assert any(request.query.get("token") == _TOKEN for request in self.server.requests)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Urls]:
    with Fleet(tmp_path_factory.mktemp("fleet"), ("c1",)) as fleet, ScriptedServer(answer("ok")) as server:
        running = Urls(fleet, server)
        running.await_outcomes()
        yield running


def _without_specs(text: str) -> str:
    """Return the objects of a file without their authors' texts: `spec` and the response of /config."""
    documents = [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if isinstance(document, dict)]
    for document in documents:
        document.pop("spec", None)
        document.get("status", {}).pop("lastSyncedConfig", None)
    return json.dumps(documents, default=str)


def _objects(fleet: Fleet) -> Iterator[tuple[str, str]]:
    for surface, text in files(fleet):
        if surface.startswith("file manifests") or "dynamic-scoring-config" in surface:
            continue
        yield surface, _without_specs(text) if surface.endswith(".yaml") else text


def _commands(fleet: Fleet) -> Iterator[tuple[str, str]]:
    commands = [("status",), ("scores", "--cluster", "c1"), ("schedule", "list"), ("changes",)]
    for name in _SCORERS:
        commands += [
            ("status", name),
            ("history", name, "--cluster", "c1"),
            ("explain", name, "--cluster", "c1"),
        ]
    for arguments in commands:
        for form in ("table", "json"):
            result = fleet.run_command(*arguments, "-o", form)
            yield f"dsf {' '.join(arguments)} -o {form}", result.stdout + result.stderr


def _page(fleet: Fleet) -> Iterator[tuple[str, str]]:
    paths = ["/", "/scorers", "/clusters", "/clusters/c1", "/changes", "/api/v1/pairs", "/api/v1/summary"]
    for name in _SCORERS:
        paths += [f"/scorers/{name}", f"/clusters/c1/scorers/{name}", f"/api/v1/history/c1/{name}"]
    for path in paths:
        yield f"page {path}", fleet.get(fleet.web_port, path)


def test_secrets_of_urls_are_on_no_surface(urls: Urls) -> None:
    fleet = urls.fleet
    text_by_surface = dict(traffic(fleet, "cycles", "dsf.cycle", "dsf.fetch", "dsf.score", "dsf.publish"))
    for surface in (contents, _objects, served, pages, _page, _commands):
        text_by_surface |= dict(surface(fleet))
    assert len(text_by_surface) > 100
    # The search reads all places.
    for checked_surface, expected_text in (
        ("dsf explain good-urls --cluster c1 -o table", "12.5"),
        ("dsf history failing-source --cluster c1 -o json", "bad query"),
        ("page /scorers/user-in-source", "auth.basic"),
        ("dsf status user-in-scoring -o table", "auth.basic"),
    ):
        assert expected_text in text_by_surface[checked_surface], checked_surface
    assert "\n".join(surface for surface, text in text_by_surface.items() if secrets_in(text, SECRETS)) == ""
