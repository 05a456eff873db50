"""Logging that a test configures is removed after it."""

from __future__ import annotations

import contextlib
import io
import logging

import pytest
import structlog

import dsf.log
from tests.support.fixtures import SettingsFactory
from tests.support.logs import restored_logging


def test_closed_file_receives_no_log_lines(
    settings_factory: SettingsFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level, structlog.is_configured()
    log = dsf.log.get("tests")
    first_stream = io.StringIO()
    with restored_logging():
        with contextlib.redirect_stderr(first_stream):
            dsf.log.setup(settings_factory(log_level="DEBUG"))
        log.warning("of this one")
        assert "of this one" in first_stream.getvalue()
    first_stream.close()
    assert (root.handlers, root.level, structlog.is_configured()) == before
    log.warning("of the next one")
    captured = capsys.readouterr()
    assert "of the next one" in captured.out + captured.err
    assert "Logging error" not in captured.err


def test_earlier_logging_setup_is_restored(settings_factory: SettingsFactory) -> None:
    dsf.log.setup(settings_factory(log_level="ERROR"))
    root = logging.getLogger()
    before = root.handlers[:], root.level
    with restored_logging():
        dsf.log.setup(settings_factory(log_level="DEBUG"))
    assert (root.handlers, root.level) == before
    assert structlog.is_configured()


def test_prepared_logging_is_undone(settings_factory: SettingsFactory) -> None:
    log = dsf.log.get("tests")
    with restored_logging():
        dsf.log.prepare(settings_factory(log_level="ERROR"))
    with structlog.testing.capture_logs() as lines:
        log.warning("of the next one")
    assert [line["event"] for line in lines] == ["of the next one"]
