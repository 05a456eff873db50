"""A hub on a folder: manifests with mistakes, and what people do to the out folder. More: tests/unit/backends."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsf.hub.main import FAILED
from tests.integration.hub.world import World, hub_process, scoring_api


def test_what_is_edited_or_removed_in_the_out_folder_is_put_right(running: World) -> None:
    work = running.out / "clusters/a/manifestwork-dynamic-scoring-config-manifestwork.yaml"
    delivered = running.out / "clusters/b/dynamic-scoring-config.yaml"
    text = work.read_text()
    work.write_text(text.replace("cpu-scorer", "evil-scorer"))
    delivered.unlink()
    running.until(lambda: "evil" not in work.read_text())
    running.until(delivered.exists)
    assert running.told("a") == ["cpu-scorer"]
    work.unlink()
    running.until(work.exists)


def test_scorers_of_one_name_in_two_namespaces(running: World) -> None:
    running.settings = running.settings.model_copy(update={"scorer_namespaces": ["team"]})
    running.restart()
    with scoring_api("mem") as other:
        running.scorer("cpu-scorer", other, file="other.yaml", metadata={"namespace": "team"})
        running.until(lambda: running.condition("team_cpu-scorer", "ConfigSynced")[1] == "ScoreNameConflict")
        assert running.entries()["a/cpu-scorer"].score_name == "cpu"


def test_a_second_hub_on_the_folder_is_refused(running: World, tmp_path: Path) -> None:
    process = hub_process(running, tmp_path / "log")
    try:
        assert process.wait(60) == FAILED
        assert "another hub works on" in process.tail()
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a/addonplacementscores/cpu copy.yaml", b"a: b\n"),
        ("a copy/addonplacementscores/cpu.yaml", b"a: b\n"),
        ("a/addonplacementscores/old.yaml", b"note: caf\xe9\n"),
    ],
    ids=["a stray file", "a stray folder", "one that cannot be read"],
)
def test_what_is_no_score_stops_no_resync(running: World, name: str, content: bytes) -> None:
    stray = running.out / "clusters" / name
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(content)
    running.client.flushall()
    running.until(running.pairs, "entries after Redis lost them")
