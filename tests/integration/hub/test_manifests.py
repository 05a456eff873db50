"""Manifests with mistakes, files in all states, and what people do to the out folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import redis

from dsf.backends import directory, make_backend, make_score_backend
from dsf.backends.manifestfolder import ManifestFolder
from dsf.errors import BackendError, SettingsError
from dsf.hub.main import FAILED
from tests.conftest import SettingsFactory
from tests.integration.hub.world import World, hub_process, scoring_api
from tests.support.httpserver import ScriptedServer

WRONG = """\
apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
kind: DynamicScorer
metadata:
  name: wrong
spec:
  description: x
  configURL: http://127.0.0.1:9/config
  configSyncMode: Ful
  scoring:
    param: {}
"""


def test_each_mistake_has_file_line_field_and_what_is_allowed(running: World) -> None:
    running.write("sub/wrong.yaml", "# a comment\n", WRONG)
    running.until(lambda: len(running.problems()) == 2)
    assert running.problems() == [
        "sub/wrong.yaml:10: spec.configSyncMode: 'Ful' is not one of Full, None",
        (
            "sub/wrong.yaml:12: spec.scoring.param: is not a known field; "
            "allowed are host, path, params, auth, tls; did you mean params?"
        ),
    ]
    running.until(lambda: ("sub/wrong.yaml", "ManifestProblem", "Warning") in running.events())
    # It stops nothing else.
    running.cluster("c")
    running.until(lambda: "c/cpu-scorer" in running.pairs())
    running.remove("sub/wrong.yaml")
    running.until(lambda: running.problems() == [])


def test_a_bad_document_stops_no_other_in_its_file(running: World) -> None:
    with scoring_api("mem") as other:
        good = running.scorer("mem-scorer", other, file="drafts/mem.yaml").read_text()
        running.write("drafts/mem.yaml", WRONG, good)
        running.until(lambda: "a/mem-scorer" in running.pairs())
        running.until(lambda: len(running.problems()) == 2)


def test_a_name_that_is_not_utf_8_stops_nothing(running: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "RESCAN", 0.2)
    bad = os.fsencode(running.folder) + b"/bad\xff.yaml"
    with open(bad, "w") as file:
        file.write(WRONG)
    running.until(lambda: any("bad\\xff.yaml" in problem for problem in running.problems()))
    running.cluster("c")
    running.until(lambda: "c/cpu-scorer" in running.pairs())
    os.unlink(bad)
    running.until(lambda: running.problems() == [])


def test_a_look_that_fails_is_not_the_last(running: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "RESCAN", 0.2)
    looks = 0

    def refresh(*_: object, **__: object) -> bool:
        nonlocal looks
        looks += 1
        raise RuntimeError("a mistake of the hub's")

    with monkeypatch.context() as patched:
        patched.setattr(ManifestFolder, "refresh", refresh)
        # One while it follows changes, and one because that ended.
        running.until(lambda: looks >= 3)
    running.cluster("c")
    running.until(lambda: "c/cpu-scorer" in running.pairs())


def test_a_half_written_file_changes_nothing_until_it_is_whole(running: World, api: ScriptedServer) -> None:
    path = running.folder / "scorers/cpu-scorer.yaml"
    whole = path.read_text()
    running.write("scorers/cpu-scorer.yaml", whole[: whole.index("spec:")] + "spec: {description: 'half")
    running.until(lambda: len(running.problems()) == 1)
    assert running.problems()[0].startswith("scorers/cpu-scorer.yaml:")
    assert "is not YAML" in running.problems()[0]
    running.cluster("c")
    running.until(lambda: running.pairs() == ["a/cpu-scorer", "b/cpu-scorer", "c/cpu-scorer"])
    # Also for a hub that starts while the file is broken.
    running.restart()
    running.until(lambda: len(running.problems()) == 1)
    running.cluster("d")
    running.until(lambda: "d/cpu-scorer" in running.pairs())
    assert "a/cpu-scorer" in running.pairs()
    # Deleting it removes what it held.
    path.unlink()
    running.until(lambda: running.pairs() == [])
    running.until(lambda: running.problems() == [])


def test_a_file_that_is_replaced_by_an_editor_loses_nothing(running: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Editors are faster than the time that a missing file has; on a busy machine a test may not be.
    monkeypatch.setattr(directory, "GRACE", 60.0)
    path = running.folder / "scorers/cpu-scorer.yaml"
    text = path.read_text()
    running.client.hset("dsf:pair:a/cpu-scorer", "n:scheduled", 3)
    uid = running.read("dynamicscorers/cpu-scorer.yaml")["metadata"]["uid"]
    # As vim does it: away with the old one, then the new one.
    path.rename(path.with_name("cpu-scorer.yaml~"))
    running.write("scorers/cpu-scorer.yaml", text.replace("description: test", "description: edited"))
    running.until(lambda: (record := running.record("cpu-scorer")) is not None and record.description == "edited")
    assert running.client.hget("dsf:pair:a/cpu-scorer", "n:scheduled") == "3"
    assert running.read("dynamicscorers/cpu-scorer.yaml")["metadata"]["uid"] == uid


def test_a_renamed_file_is_no_change_of_its_objects(running: World) -> None:
    path = running.folder / "scorers/cpu-scorer.yaml"
    before = running.read("dynamicscorers/cpu-scorer.yaml")["metadata"]
    running.client.hset("dsf:pair:a/cpu-scorer", "n:scheduled", 3)
    path.rename(running.folder / "renamed.yml")
    annotation = "dynamic-scoring.open-cluster-management.io/manifest"
    running.until(
        lambda: running.read("dynamicscorers/cpu-scorer.yaml")["metadata"]["annotations"][annotation] == "renamed.yml"
    )
    after = running.read("dynamicscorers/cpu-scorer.yaml")["metadata"]
    assert (after["uid"], after["generation"]) == (before["uid"], before["generation"])
    assert running.problems() == []
    assert running.client.hget("dsf:pair:a/cpu-scorer", "n:scheduled") == "3"


def test_one_object_in_two_files(running: World, api: ScriptedServer) -> None:
    running.scorer("cpu-scorer", api, file="a-copy.yaml", execution={"suspend": True})
    running.until(lambda: len(running.problems()) == 1)
    [problem] = running.problems()
    assert problem == (
        "a-copy.yaml:1: metadata.name: DynamicScorer 'cpu-scorer' is also in scorers/cpu-scorer.yaml, line 1, "
        "and that one counts; remove one of them"
    )
    assert not running.entries()["a/cpu-scorer"].suspended
    running.remove("scorers/cpu-scorer.yaml")
    running.until(lambda: running.entries()["a/cpu-scorer"].suspended)
    running.until(lambda: running.problems() == [])


def test_a_cluster_that_does_not_say_whether_it_is_accepted(running: World) -> None:
    cluster = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
    running.write("c.yaml", {**cluster, "metadata": {"name": "c"}, "spec": {}})
    running.until(lambda: len(running.problems()) == 1)
    [problem] = running.problems()
    assert problem == (
        "c.yaml:1: spec.hubAcceptsClient: is not there, so the cluster is not accepted and nothing runs on it; "
        "true accepts it"
    )
    assert "c/cpu-scorer" not in running.pairs()


def test_files_that_are_no_manifests_are_left_alone(running: World) -> None:
    for name in (".hidden.yaml", ".dir/x.yaml", "x.yaml~", ".x.yaml.swp", "#x.yaml#", "notes.txt", "_out/own.yaml"):
        running.write(name, WRONG)
    running.write("big.yaml", "#" * (5 * 1024 * 1024))
    (running.folder / "binary.yaml").write_bytes(b"a: 1\nb: \xff\xfe\n")
    running.until(lambda: len(running.problems()) == 2)
    assert running.problems() == [
        "big.yaml:1: is larger than the 4194304 bytes a file of manifests may have",
        "binary.yaml:2: is not UTF-8 text",
    ]


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


def test_a_folder_that_disappears_changes_nothing(running: World, tmp_path: Path) -> None:
    running.settings = running.settings.model_copy(update={"out_dir": tmp_path / "elsewhere"})
    running.out = tmp_path / "elsewhere"
    running.restart()
    running.until(lambda: running.told("a") == ["cpu-scorer"])
    running.folder.rename(tmp_path / "unmounted")
    running.until(lambda: len(running.problems()) == 1, timeout=15)
    assert "nothing is changed until it can" in running.problems()[0]
    assert running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"]
    (tmp_path / "unmounted").rename(running.folder)
    running.until(lambda: running.problems() == [], timeout=15)
    assert running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"]


def test_scorers_of_one_name_in_two_namespaces(running: World) -> None:
    running.settings = running.settings.model_copy(update={"scorer_namespaces": ["team"]})
    running.restart()
    with scoring_api("mem") as other:
        running.scorer("cpu-scorer", other, file="other.yaml", metadata={"namespace": "team"})
        running.until(lambda: running.condition("team_cpu-scorer", "ConfigSynced")[1] == "ScoreNameConflict")
        assert running.entries()["a/cpu-scorer"].score_name == "cpu"


def test_a_second_hub_on_the_folder_is_refused(running: World, tmp_path: Path) -> None:
    second = make_backend(running.settings)
    with pytest.raises(BackendError, match="another hub works on"):
        second.start(lambda _: None)
    process = hub_process(running, tmp_path / "log")
    try:
        assert process.wait(60) == FAILED
        assert "another hub works on" in process.tail()
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"manifests": None}, "DSF_MANIFESTS: is required"),
        ({"manifests": Path("/nonexistent/x")}, "DSF_MANIFESTS: /nonexistent/x is not a folder"),
        ({"out_dir": Path("/")}, "DSF_OUT_DIR: / is or contains the folder of manifests"),
        ({"addon_mode": True}, "DSF_ADDON_MODE: goes with DSF_BACKEND=kube"),
    ],
)
def test_settings_that_cannot_be_used(
    tmp_path: Path, settings_factory: SettingsFactory, values: dict[str, object], message: str
) -> None:
    settings = settings_factory(**{"backend": "dir", "manifests": tmp_path, **values})
    with pytest.raises(SettingsError, match=message):
        make_backend(settings)


def test_the_writer_of_scores_needs_no_hub(running: World, redis_client: redis.Redis) -> None:
    scores = make_score_backend(running.settings)
    metadata = {"name": "cpu", "namespace": "a", "labels": {"x": "y"}}
    manifest = {"apiVersion": "v", "kind": "AddOnPlacementScore", "metadata": metadata}
    scores.apply_score(manifest, {"validUntil": "2030-01-01T00:00:00Z"})
    first = running.read("clusters/a/addonplacementscores/cpu.yaml")
    assert first["metadata"]["labels"] == {"x": "y"}
    assert first["metadata"]["uid"]
    scores.apply_score(manifest, {"validUntil": "2031-01-01T00:00:00Z"})
    second = running.read("clusters/a/addonplacementscores/cpu.yaml")
    assert second["metadata"] == first["metadata"]
    assert second["status"] == {"validUntil": "2031-01-01T00:00:00Z"}
    scores.delete_score("a", "cpu")
    scores.delete_score("a", "cpu")
    assert not (running.out / "clusters/a/addonplacementscores").exists()
    assert (running.out / "clusters/a").exists()
    with pytest.raises(BackendError, match="cluster 'gone' is not there"):
        scores.apply_score({**manifest, "metadata": {**metadata, "namespace": "gone"}}, {})


@pytest.mark.parametrize("name", ["a/addonplacementscores/cpu copy.yaml", "a copy/addonplacementscores/cpu.yaml"])
def test_a_stray_file_among_the_scores_stops_no_resync(running: World, name: str) -> None:
    stray = running.out / "clusters" / name
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_text("a: b\n")
    running.client.flushall()
    running.until(running.pairs, "entries after Redis lost them")


def test_a_score_that_cannot_be_read_stops_no_resync(running: World) -> None:
    stray = running.out / "clusters/a/addonplacementscores/old.yaml"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"note: caf\xe9\n")
    running.client.flushall()
    running.until(running.pairs, "entries after Redis lost them")
