"""The extra services of `dsf demo --with`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsf.api.manifest import ParsedDocument, parse_documents
from dsf.api.promql import split_queries
from dsf.api.scorer import DynamicScorer
from dsf.cli.main import app
from dsf.demo import manifests
from dsf.demo.extras import EXTRAS, Extra, select_extras
from dsf.demo.services import PROMETHEUS_NAME, ScorerService

PORTS = {"sample-scorer": 8000, "static-scorer": 8001}


def test_extras_have_distinct_ports_and_samples() -> None:
    ports = [*PORTS.values(), *(extra.port for extra in EXTRAS.values())]
    assert len(set(ports)) == len(ports)
    for extra in EXTRAS.values():
        assert (manifests.FOLDER / "samples" / extra.sample / "app.py").is_file()


@pytest.mark.parametrize("name", EXTRAS)
def test_extra_manifest_is_valid(name: str, tmp_path: Path) -> None:
    extra = EXTRAS[name]
    assert manifests.prepare(tmp_path / "demo", {**PORTS, extra.sample: 9999}, [extra.manifest]) == []
    (document,) = parse_documents((tmp_path / "demo" / extra.manifest.name).read_text(), extra.manifest.name)
    assert isinstance(document, ParsedDocument), document
    assert isinstance(document.object, DynamicScorer)
    assert document.object.spec.config_url.startswith("http://127.0.0.1:9999/")


@pytest.mark.parametrize("name", EXTRAS)
def test_extra_scorer_queries_the_prometheus_of_each_cluster(name: str) -> None:
    extra = EXTRAS[name]
    environment = ScorerService(extra.sample, extra.port, extra.environment).program().environment
    assert environment is not None
    assert environment["SOURCE_HOST"] == f"http://{PROMETHEUS_NAME}"
    assert split_queries(environment["SOURCE_QUERY"])
    # The last sample of a range query is of now only when the range is a multiple of the step.
    assert int(environment["SOURCE_RANGE"]) % int(environment["SOURCE_STEP"]) == 0
    assert int(environment["SCORE_INTERVAL"]) <= 10


def test_extra_is_added_to_existing_manifests_and_then_kept_as_edited(tmp_path: Path) -> None:
    folder, extra = tmp_path / "demo", EXTRAS["prediction"]
    manifests.prepare(folder, PORTS)
    assert select_extras([], folder) == []
    manifests.prepare(folder, {**PORTS, extra.sample: 8002}, [extra.manifest])
    file = folder / extra.manifest.name
    file.write_text(file.read_text() + "# mine\n")

    # The extra runs from now on without the option, because its manifest would otherwise name a missing service.
    assert select_extras([], folder) == [extra]
    assert manifests.prepare(folder, {**PORTS, extra.sample: 8003}, [extra.manifest]) != []
    assert file.read_text().endswith("# mine\n")
    assert "http://127.0.0.1:8003/config" in file.read_text()


def test_extra_names_select_the_extras() -> None:
    assert select_extras(list(EXTRAS), Path("/nowhere")) == list(EXTRAS.values())
    with pytest.raises(KeyError):
        select_extras(["colour"], Path("/nowhere"))


def test_mistyped_extra_is_refused_before_the_start() -> None:
    result = CliRunner().invoke(app, ["demo", "--with", "predictoin"], prog_name="dsf")
    assert result.exit_code == 2
    error_output = " ".join(result.stderr.replace("│", " ").split())
    assert "'predictoin' is not one of prediction (" in error_output


@pytest.mark.parametrize("name", EXTRAS)
def test_help_lists_all_extras(name: str) -> None:
    result = CliRunner().invoke(app, ["demo", "--help"], prog_name="dsf")
    assert f"{name} (" in " ".join(result.stdout.replace("│", " ").split())
    assert isinstance(EXTRAS[name], Extra)
