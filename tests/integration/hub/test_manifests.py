"""A hub on a folder: invalid manifests, and users' edits of the out folder. More: tests/unit/backends."""

from __future__ import annotations

from pathlib import Path

from dsf.process.launch import EXIT_FAILURE
from tests.integration.hub.world import HubHarness, hub_process


def test_edited_or_deleted_output_files_are_repaired(running: HubHarness) -> None:
    work = running.out / "clusters/a/manifestwork-dynamic-scoring-config-manifestwork.yaml"
    delivered = running.out / "clusters/b/dynamic-scoring-config.yaml"
    text = work.read_text()
    work.write_text(text.replace("cpu-scorer", "evil-scorer"))
    delivered.unlink()
    running.until(lambda: "evil" not in work.read_text())
    running.until(delivered.exists)
    assert running.delivered_scorers("a") == ["cpu-scorer"]
    work.unlink()
    running.until(work.exists)


def test_second_hub_on_the_same_folder_is_refused(running: HubHarness, tmp_path: Path) -> None:
    process = hub_process(running, tmp_path / "log")
    try:
        assert process.wait(60) == EXIT_FAILURE
        assert "another hub works on" in process.tail()
    finally:
        process.kill()


def test_emptied_redis_is_refilled_despite_stray_score_files(running: HubHarness) -> None:
    strays = {"a/addonplacementscores/cpu copy.yaml": b"a: b\n", "a copy/addonplacementscores/cpu.yaml": b"a: b\n"}
    unreadable = {"a/addonplacementscores/old.yaml": b"note: caf\xe9\n"}
    for name, content in (strays | unreadable).items():
        stray = running.out / "clusters" / name
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_bytes(content)
    running.client.flushall()
    running.until(lambda: running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"])
    running.until(lambda: running.record("cpu-scorer") is not None)
    running.until(lambda: running.cluster_record("a") is not None)
