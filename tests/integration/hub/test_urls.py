"""A hub and URLs with secrets: users get a remedy, and nobody sees the secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.cli.statusreport import read_report
from dsf.fleet.queries import FleetQueries
from dsf.web.objects import list_settings, read_from_folder
from tests.integration.hub.world import HubHarness, hub_process, remote_config, scoring_api
from tests.support.httpserver import answer

USER, PASSWORD, TOKEN = "canary-user", "canary-pass/zq9x", "canary-token"
SECRETS = (USER, "canary-pass", "zq9x", TOKEN)
#: As people write it, where a password needs no escape and where it has one.
URLS = (
    f"http://{USER}:{PASSWORD}@prometheus.test:9090",
    f"http://{USER}:{PASSWORD.replace('/', '%2F')}@prometheus.test",
)
GROUP = "dynamic-scoring.open-cluster-management.io/v1alpha1"
QUERY: dict[str, Any] = {"type": "Prometheus", "params": {"query": "up", "range": 60, "step": 10}}


def _content(world: HubHarness) -> dict[str, str]:
    """Return all readable texts, except for the users' own manifests and their copies in `spec`."""
    text_by_surface: dict[str, str] = {}
    for file in world.out.rglob("*.yaml"):
        documents = list(yaml.load_all(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader))
        for document in documents:
            if isinstance(document, dict) and document.get("kind") in ("DynamicScorer", "ScoringAuthentication"):
                document.pop("spec", None)
        text_by_surface[str(file)] = json.dumps(documents, default=str)
    readers: dict[str, Any] = {
        "string": world.client.get,
        "hash": world.client.hgetall,
        "zset": lambda key: world.client.zrange(key, 0, -1),
        "set": world.client.smembers,
        "list": lambda key: world.client.lrange(key, 0, -1),
    }
    for key in world.client.scan_iter("*"):
        text_by_surface[f"redis {key}"] = str(readers.get(str(world.client.type(key)), str)(key))
    fleet = FleetQueries(world.client)
    text_by_surface["/api/v1/summary"] = fleet.summary().model_dump_json()
    text_by_surface["/api/v1/scorers"] = fleet.scorers().model_dump_json()
    text_by_surface["dsf status"] = read_report(world.client, world.settings, None).model_dump_json()
    for name in ("source", "several", "scoring", "config-url", "remote", "bad-answer"):
        if (scorer := read_from_folder(world.out, name, "")) is not None:
            text_by_surface[f"page of {name}"] = str(list_settings(scorer))
    return text_by_surface


@pytest.mark.parametrize("url", URLS)
def test_user_information_of_a_url_is_refused_with_its_remedy_and_shown_nowhere(
    world: HubHarness, tmp_path: Path, url: str
) -> None:
    world.config()
    world.cluster("a")
    log = tmp_path / "hub.log"
    with scoring_api() as api, scoring_api("remote") as remote, scoring_api("bad") as failing_api:
        remote.script(answer(remote_config("remote", host=url)), path="/config")
        failing_api.script(answer("no", 500), path="/healthz")
        # Without /config, whose hosts would be used instead.
        scorer_fields: dict[str, Any] = {"mode": "None", "scoring": {"params": {"name": "cpu", "interval": 30}}}
        world.scorer("source", api, source={**QUERY, "host": url}, **scorer_fields)
        world.scorer("several", api, sources=[{**QUERY, "name": "x", "host": url}], **scorer_fields)
        world.scorer("scoring", api, mode="None", scoring={**scorer_fields["scoring"], "host": url})
        world.scorer("config-url", f"{url}/x?token={TOKEN}")
        world.scorer("remote", remote)
        world.scorer("bad-answer", f"{failing_api.url}/x?token={TOKEN}&a=")
        authentication = {
            "apiVersion": GROUP,
            "kind": "ScoringAuthentication",
            "metadata": {"name": "auth"},
            "spec": {"allowedHosts": [url], "proxyURL": url},
        }
        world.write("auth.yaml", authentication)
        process = hub_process(world, log)
        try:
            for name in ("source", "several", "scoring"):
                world.until(lambda name=name: world.condition(name, "ConfigSynced")[1] == "InvalidURL", timeout=30)
                assert "auth.basic" in world.condition(name, "ConfigSynced")[2]
            world.until(lambda: world.condition("remote", "ConfigSynced")[1] == "ConfigInvalid", timeout=30)
            assert "source.host: " in world.condition("remote", "ConfigSynced")[2]
            assert "auth.basic" in world.condition("remote", "ConfigSynced")[2]
            world.until(lambda: world.condition("config-url", "Healthy")[1] == "InvalidURL", timeout=30)
            assert "auth.basic" in world.condition("config-url", "Healthy")[2]
            world.until(lambda: world.condition("bad-answer", "Healthy")[1] == "HTTPError", timeout=30)
            world.until(lambda: any("proxyURL" in problem for problem in world.problems()), timeout=30)
            world.until(lambda: "InvalidURL" in _content(world)["/api/v1/summary"], timeout=30)
            text_by_surface = _content(world) | {"log": log.read_text()}
            assert [
                surface for surface, text in text_by_surface.items() if any(secret in text for secret in SECRETS)
            ] == []
        finally:
            process.kill()


def test_password_in_an_upstream_status_is_removed(world: HubHarness) -> None:
    world.config()
    world.cluster("a")
    with scoring_api() as api:
        api.script(answer(remote_config(host=URLS[0])), path="/config")
        file = world.scorer("s", api)
        manifest = yaml.safe_load(file.read_text())
        manifest["status"] = {"healthStatus": "Active", "lastSyncedConfig": remote_config(host=URLS[0])}
        world.write("scorers/s.yaml", manifest)
        world.start()
        world.until(lambda: world.condition("s", "ConfigSynced")[1] == "ConfigInvalid", timeout=30)
        assert not any(secret in str(world.status("s")) for secret in SECRETS)
