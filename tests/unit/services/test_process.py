"""Interactions of the services of one process."""

from __future__ import annotations

from pathlib import Path

from dsf.process.service import Shutdown
from dsf.services.process import HubProcess
from tests.support.fixtures import SettingsFactory


def test_score_writer_yields_to_results_of_its_process(settings_factory: SettingsFactory, tmp_path: Path) -> None:
    settings = settings_factory(
        role="hub",
        backend="dir",
        manifests=tmp_path,
        redis_url="redis://127.0.0.1:1/0",
        signing_secret="5e" * 32,
        target="controller,results",
    )
    process = HubProcess(settings, Shutdown())
    (controller,) = process._services
    assert process._results is not None
    is_behind = controller._hub.writer._is_behind  # type: ignore[attr-defined]
    assert not is_behind()
    process._results._intake.is_behind = True
    assert is_behind()
