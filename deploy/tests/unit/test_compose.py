"""docker-compose.yaml and Dockerfiles, without a container engine: names in them exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from dsf.api.manifest import ParsedDocument, parse_documents
from dsf.api.promql import split_queries
from dsf.api.scorer import DynamicScorer
from dsf.cli.main import app
from dsf.demo import services as demo_services
from dsf.settings import ENV_PREFIX, Settings

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = yaml.load((ROOT / "docker-compose.yaml").read_text(), Loader=yaml.CSafeLoader)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "target" in service.get("build", {})}
SAMPLES = ("sample-scorer", "static-scorer")
#: Dockerfiles of images that are built in the root of the repository.
DOCKERFILES = [ROOT / "Dockerfile", *sorted((ROOT / "samples").glob("*-scorer/Dockerfile"))]


def test_compose_services_are_those_of_the_demo() -> None:
    clusters = ("worker01", "worker02")
    parts = ("agent", "prometheus", "node-exporter")
    assert set(SERVICES) == (
        {"redis", "hub", "flower", *SAMPLES} | {f"{part}-{cluster}" for part in parts for cluster in clusters}
    )


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_has_a_version_or_is_built_here(name: str) -> None:
    service = SERVICES[name]
    if "build" in service:
        assert service["build"]["context"] == "."
        file = ROOT / service["build"].get("dockerfile", "Dockerfile")
        assert file in DOCKERFILES
        if name in OURS:
            target = "agent" if name.startswith("agent-") else "hub"
            assert service["build"]["target"] == target
            assert re.search(rf"^FROM base AS {target}$", file.read_text(), re.MULTILINE)
    else:
        assert re.search(r":v?\d+\.\d+", service["image"])
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", OURS)
def test_every_command_exists_in_dsf(name: str) -> None:
    commands = typer.main.get_command(app)
    command, *options = OURS[name]["command"]
    command_object = commands.commands[command]  # type: ignore[attr-defined]
    flags = {flag for parameter in command_object.params for flag in parameter.opts}
    assert {option for option in options if option.startswith("-")} <= flags


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_a_setting_with_a_good_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {key: value for key, value in OURS[name]["environment"].items() if key.startswith(ENV_PREFIX)}
    assert {key.removeprefix(ENV_PREFIX).lower() for key in values} <= set(Settings.model_fields)
    for key, value in values.items():
        monkeypatch.setenv(key, value)
    role = Settings.load().role
    assert role == OURS[name]["command"][0]


@pytest.mark.parametrize("name", [*OURS, *SAMPLES])
def test_ours_run_without_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "/tmp" in service["tmpfs"]
    assert "user" not in service, "the image's own user is no root"
    assert "privileged" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_volumes_networks_and_dependencies_exist(name: str) -> None:
    service = SERVICES[name]
    for volume in service.get("volumes", []):
        source, target = volume.split(":")[:2]
        assert target.startswith("/")
        assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    assert set(service["networks"]) <= set(COMPOSE["networks"])
    for other, condition in service.get("depends_on", {}).items():
        assert condition["condition"] != "service_healthy" or "healthcheck" in SERVICES[other]
        assert set(SERVICES[other]["networks"]) & set(service["networks"]), f"{name} cannot reach {other}"


def test_ports_are_for_this_machine_only_and_differ() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)
    hosts = [port.split(":")[1] for port in published]
    assert sorted(hosts) == ["5555", "8080", "9090", "9091"]


def test_file_of_each_health_check_is_written() -> None:
    for name, service in SERVICES.items():
        for word in service.get("healthcheck", {}).get("test", []):
            if "find /tmp/alive" in word:
                # Compose files escape a dollar for the shell by two.
                assert "$$(" in word
                assert service["environment"]["DSF_PROBE_DIR"] == "/tmp", name


@pytest.mark.parametrize("cluster", ["worker01", "worker02"])
def test_each_cluster_is_a_network_with_its_own_prometheus(cluster: str) -> None:
    alias = SERVICES[f"prometheus-{cluster}"]["networks"][cluster]["aliases"][0]
    assert f"{alias}:9090" == demo_services.PROMETHEUS_NAME
    other_clusters = {"worker01", "worker02"} - {cluster}
    assert not other_clusters & set(SERVICES[f"agent-{cluster}"]["networks"])
    config = yaml.load((ROOT / "demo" / "compose" / f"prometheus-{cluster}.yml").read_text(), Loader=yaml.CSafeLoader)
    targets = [job["static_configs"][0]["targets"][0] for job in config["scrape_configs"]]
    assert targets == ["localhost:9090", f"node-exporter-{cluster}:9100", f"agent-{cluster}:8080"]
    assert {target.partition(":")[0] for target in targets[1:]} <= set(SERVICES)
    environment = SERVICES[f"agent-{cluster}"]["environment"]
    assert SERVICES[f"agent-{cluster}"]["command"] == ["agent", "--cluster", cluster]
    for variable in ("DSF_AGENT_CONFIG", "DSF_SIGNING_KEY_FILE"):
        assert f"/clusters/{cluster}/" in environment[variable]


def test_sample_scorer_has_the_queries_of_the_demo_without_their_offset() -> None:
    query = SERVICES["sample-scorer"]["environment"]["SOURCE_QUERY"].replace("$$", "$")
    assert split_queries(query) == [demo_query.replace(" offset -1s", "") for demo_query in demo_services.QUERIES]


def test_demo_manifests_name_services() -> None:
    files = sorted((ROOT / "demo" / "manifests").glob("*.yaml"))
    documents = [document for file in files for document in parse_documents(file.read_text(), file.name)]
    objects = [document.object for document in documents if isinstance(document, ParsedDocument)]
    assert len(objects) == len(documents)
    scorers = [scorer for scorer in objects if isinstance(scorer, DynamicScorer)]
    with_api = [scorer for scorer in scorers if scorer.spec.scoring is None or not scorer.spec.scoring.expression]
    assert (len(scorers), len(with_api)) == (5, 3)
    for scorer in with_api:
        assert re.match(r"http://(sample|static)-scorer:8000/", scorer.spec.config_url)


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.parent.name)
def test_dockerfiles_keep_the_rules(file: Path) -> None:
    text = re.sub(r"\\\n\s*", "", file.read_text())
    instructions = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    values: dict[str, list[str]] = {}
    for name, value in instructions:
        values.setdefault(name, []).append(value)
    arguments = dict(value.split("=", 1) for value in values.get("ARG", []))
    stages = {source.partition(" AS ")[2] for source in values["FROM"]}
    for source in values["FROM"]:
        if source.partition(" ")[0] in stages:
            continue
        image = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], source.partition(" ")[0])
        assert re.search(r":\d+\.\d+\.\d+", image), f"{image} has no exact version"
    assert values["USER"][-1] == "65532:65532"
    assert values["ENTRYPOINT"][-1].startswith("["), "a shell would not pass signals on"
    assert "ADD" not in values
    assert not any("sudo" in command or "curl" in command for command in values.get("RUN", []))
    assert any("org.opencontainers.image.title" in label for label in values["LABEL"])
    for copied in values["COPY"]:
        if not copied.startswith("--from"):
            for source in copied.split()[:-1]:
                assert (ROOT / source).exists()


def test_versions_of_the_samples_are_those_that_are_tested() -> None:
    locked = (ROOT / "uv.lock").read_text()
    files = sorted((ROOT / "samples").glob("*/requirements.txt"))
    assert len(files) >= len(SAMPLES)
    for file in files:
        for line in file.read_text().splitlines():
            package, version = line.split("==")
            assert f'name = "{package}"\nversion = "{version}"' in locked


def test_uv_is_the_same_everywhere() -> None:
    """The script and the images read one uv.lock. The image is pinned by digest too."""
    script = (ROOT / "scripts" / "uv").read_text()
    version = re.search(r"^VERSION=(\d+\.\d+\.\d+)$", script, re.MULTILINE)
    assert version is not None
    assert f"ghcr.io/astral-sh/uv:{version[1]}@sha256:" in (ROOT / "Dockerfile").read_text()


def test_build_context_has_the_files_of_the_images() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for file in DOCKERFILES
        for line in re.findall(r"^COPY (?!--)(.*) \S+$", file.read_text(), re.MULTILINE)
        for source in line.split()
    }

    def is_in(source: str, folder: str) -> bool:
        return source == folder or source.startswith(f"{folder}/")

    assert [source for source in copied if not any(is_in(source, folder) for folder in allowed)] == []
    assert [folder for folder in allowed if not any(is_in(source, folder) for source in copied)] == []
