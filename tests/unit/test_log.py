"""Log lines that outside programs can cause."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dsf.log import Throttle
from dsf.settings import find_unknown_variables, make_child_environment


@pytest.mark.parametrize(
    ("environment", "unknown"),
    [
        ({"DSF_REDIS_URL": "redis://h", "dsf_log_level": "INFO", "PATH": "/bin"}, []),
        ({"DSF_OTLP_TOKEN_FILE": "/t", "DSF_EXPORTER_HOST": "::1"}, ["DSF_EXPORTER_HOST", "DSF_OTLP_TOKEN_FILE"]),
        ({"DSF_REDIS_URLS": "", "dsf_redis": ""}, ["DSF_REDIS_URLS", "dsf_redis"]),
        ({"DSF_TEST_PATIENCE": "2"}, []),
        # Kubernetes adds these variables for the Service dsf-exporter; DSF_EXPORTER_HOST is an old setting.
        (
            {
                "DSF_EXPORTER_SERVICE_HOST": "10.0.0.1",
                "DSF_EXPORTER_SERVICE_PORT_HTTP": "8080",
                "DSF_EXPORTER_PORT": "tcp://10.0.0.1:8080",
                "DSF_EXPORTER_PORT_8080_TCP_ADDR": "10.0.0.1",
                "DSF_EXPORTER_HOST": "::1",
            },
            ["DSF_EXPORTER_HOST"],
        ),
        ({"DSF_EXPORTER_PORT": "8080"}, ["DSF_EXPORTER_PORT"]),
    ],
)
def test_variables_that_are_no_settings(environment: dict[str, str], unknown: list[str]) -> None:
    assert find_unknown_variables(environment) == unknown


def test_unknown_settings_are_named_once_by_a_process_and_not_by_a_command() -> None:
    environment = make_child_environment(log_format="json") | {"DSF_OTLP_TOKEN_FILE": "/etc/hidden"}

    def logged_lines(code: str) -> list[dict[str, str]]:
        program = f"import dsf.log\nfrom dsf.settings import settings\n{code}\ndsf.log.get('x').info('begins')"
        process = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        return [json.loads(line) for line in process.stderr.splitlines()]

    warning, begins = logged_lines("dsf.log.setup(settings())")
    assert (warning["level"], warning["names"]) == ("warning", "DSF_OTLP_TOKEN_FILE")
    assert "hidden" not in json.dumps(warning)
    assert begins["event"] == "begins"
    assert [line["event"] for line in logged_lines("dsf.log.prepare(settings())")] == ["begins"]


def test_throttle_passes_one_per_kind_and_counts_the_rest() -> None:
    throttle = Throttle(every=3600)
    assert throttle.take("a") == 0
    assert throttle.take("a") is None
    assert throttle.take("b") == 0
    always = Throttle(every=0)
    assert [always.take("a"), always.take("a")] == [0, 0]


def test_next_logged_line_counts_the_suppressed_ones(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("dsf.log.time.monotonic", lambda: now[0])
    throttle = Throttle(every=1)
    assert [throttle.take("a") for _ in range(4)] == [0, None, None, None]
    now[0] += 1
    assert throttle.take("a") == 3
