"""Environment variables of libraries do not override the settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import dsf.log
from dsf import foreignvariables
from dsf.settings import Settings, make_child_environment

OTHER = "redis://127.0.0.1:6399/3"
OURS = "redis://127.0.0.1:6400/0"


def in_process(code: str, **environment: str) -> str:
    """Return the output of a new process."""
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DSF_REDIS_URL": OURS, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


CONNECTIONS = """
import json
from dsf.celery import app
print(json.dumps([str(app.connection_for_read().as_uri()), str(app.connection_for_write().as_uri()),
    app.conf.broker_url, app.conf.result_backend]))
"""


def test_celery_uses_the_redis_of_the_settings() -> None:
    names = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
    read, write, broker, results = json.loads(in_process(CONNECTIONS, **dict.fromkeys(names, OTHER)))
    assert (read, write, broker, results) == (OURS, OURS, OURS, None)


def test_command_of_celery_uses_the_redis_of_the_settings() -> None:
    code = """
import sys
from celery.bin.celery import main
sys.argv = ["celery", "-A", "dsf.celery", "report"]
sys.exit(main())
"""
    report = in_process(code, BROKER_URL=OTHER, CONFIG_MODULE="no.such", LOADER="no.such")
    assert OTHER not in report
    assert "6400" in report


@pytest.mark.parametrize("value", ["tcp://10.0.0.7:5555", "udp://10.0.0.7:53"])
def test_flower_ignores_links_to_services(value: str) -> None:
    environment = {"FLOWER_PORT": value, "FLOWER_BASIC_AUTH": "user:sesame", "CELERY_PORT": value}
    foreignvariables.clean(environment)
    assert environment == {"FLOWER_BASIC_AUTH": "user:sesame"}


def test_settings_ignore_links_to_services_of_their_name() -> None:
    """Kubernetes sets DSF_OTLP_PORT for a Service `dsf-otlp`."""
    environment = {"DSF_OTLP_PORT": "tcp://10.0.0.7:4318", "DSF_REDIS_URL": "tcp://10.0.0.7:6379"}
    foreignvariables.clean(environment)
    assert environment == {"DSF_REDIS_URL": "tcp://10.0.0.7:6379"}, "a wrong setting is still refused"


def test_variables_for_other_celery_applications_do_not_matter() -> None:
    environment = {
        "C_STRICT_APP": "1",
        "CELERY_WORKDIR": "/no/such",
        "CELERY_BROKER": OTHER,
        "CELERY_TRACE_APP": "1",
        "CELERY_RDBSIG": "1",
        "CELERY_LOG_LEVEL": "garbage",
        "PICKLE_PROTOCOL": "five",
        "C_BENCH_EVERY": "often",
        "C_WNOCONF": "perhaps",
        "AUTOSCALE_KEEPALIVE": "long",
        "DJANGO_SETTINGS_MODULE": "no.such",
    }
    code = """
import os, warnings
warnings.simplefilter("error")
from dsf.settings import Settings
config = Settings.load()
from dsf.worker.application import make_app
app = make_app(config)
from celery import chain, current_app
from celery.loaders import default
from celery.worker import autoscale, state
current_app.tasks
print(app.connection_for_write().as_uri(), *(name for name in os.environ if name.startswith(("CELERY_", "C_"))))
"""
    assert in_process(code, **environment).split() == [OURS]


def test_options_of_celery_commands_are_kept() -> None:
    environment = {"CELERY_WORKER_CONCURRENCY": "1", "CELERY_BEAT_MAX_INTERVAL": "5", "CELERY_SKIP_CHECKS": "1"}
    foreignvariables.clean(environment)
    assert environment == {"CELERY_WORKER_CONCURRENCY": "1", "CELERY_BEAT_MAX_INTERVAL": "5"}


@pytest.mark.parametrize(
    ("names", "usable_names"),
    [("tracecontext,baggage", "tracecontext,baggage"), ("tracecontext, b3,xray", "tracecontext"), ("b3", None)],
)
def test_propagators_that_are_not_installed_are_left_out(names: str, usable_names: str | None) -> None:
    """The import of OpenTelemetry's API raises ValueError for them, and FastAPI imports it."""
    environment = {"OTEL_PROPAGATORS": names}
    foreignvariables.clean(environment)
    assert environment.get("OTEL_PROPAGATORS") == usable_names


def test_flower_keeps_its_options() -> None:
    environment = {"FLOWER_PORT": "5556", "FLOWER_MAX_TASKS": "7"}
    foreignvariables.clean(environment)
    assert environment == {"FLOWER_PORT": "5556", "FLOWER_MAX_TASKS": "7"}


#: Variables of several libraries.
FOREIGN = {
    "WEB_CONCURRENCY": "many",
    "FORWARDED_ALLOW_IPS": "*",
    "REDIS_URL": OTHER,
    "REDIS_HOST": "elsewhere",
    "REDIS_PORT": "tcp://10.0.0.1:6379",
    "NETRC": "/etc/netrc",
    "REQUESTS_CA_BUNDLE": "/no/such",
    "KOMBU_LOG_CONNECTION": "1",
}
#: Prints what the libraries do with them.
_EFFECTS = """
import json
from dsf.settings import Settings
settings = Settings.load()
import kombu.connection
from prometheus_client.values import ValueClass
from dsf.http.serving import make_config
from dsf.http.transport import _Session
from dsf.store.client import connect
config = make_config(None, None, shutdown_seconds=1)
options = connect(settings).connection_pool.connection_kwargs
print(json.dumps({
    "uvicorn": [config.workers, config.forwarded_allow_ips, config.proxy_headers],
    "metrics": ValueClass.__name__,
    "redis": [options["host"], options["port"]],
    "requests": _Session().trust_env,
    "kombu": bool(kombu.connection._log_connection),
}))
"""


@pytest.fixture(scope="module")
def effects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return what the libraries do in a process with variables for all of them."""
    folder = tmp_path_factory.mktemp("metrics")
    result: dict[str, object] = json.loads(in_process(_EFFECTS, PROMETHEUS_MULTIPROC_DIR=str(folder), **FOREIGN))
    return result


def test_uvicorn_serves_in_one_process_and_trusts_no_proxy(effects: dict[str, object]) -> None:
    assert effects["uvicorn"] == [1, "127.0.0.1,::1", False]


def test_metrics_stay_in_the_process(effects: dict[str, object]) -> None:
    assert effects["metrics"] == "MutexValue"


def test_redis_clients_have_the_servers_of_the_settings_alone(effects: dict[str, object]) -> None:
    assert effects["redis"] == ["127.0.0.1", 6400]


def test_requests_take_no_credentials_from_the_environment(effects: dict[str, object]) -> None:
    assert effects["requests"] is False


def test_kombu_logs_no_calls_with_credentials(effects: dict[str, object]) -> None:
    assert effects["kombu"] is False


def test_tracing_keeps_its_own_variables() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SERVICE_NAME": "mine"}
    before = dict(environment)
    foreignvariables.clean(environment)
    assert environment == before


def test_child_process_gets_no_variable_of_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery's command line reads CELERY_WORKDIR before this project is imported."""
    monkeypatch.setenv("CELERY_WORKDIR", "/no/such")
    monkeypatch.setenv("OTEL_PROPAGATORS", "b3")
    assert not {"CELERY_WORKDIR", "OTEL_PROPAGATORS"} & make_child_environment(role="flower").keys()


def test_ignored_variable_is_named_in_the_log_without_its_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(foreignvariables, "_removed", {})
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://:sesame@elsewhere/0")
    dsf.log.setup(Settings.load())
    assert "CELERY_BROKER_URL" not in os.environ
    [line] = [line for line in capsys.readouterr().err.splitlines() if "a variable of a library is ignored" in line]
    assert "name=CELERY_BROKER_URL" in line
    assert "instead=DSF_REDIS_URL" in line
    assert "sesame" not in line


@pytest.mark.parametrize("name", ["COLUMNS", "LINES", "TERMINAL_WIDTH"])
@pytest.mark.parametrize(
    ("value", "is_kept"),
    [("80", True), ("9999", True), *((value, False) for value in ("10000", "9" * 11, "0", "-5", "abc", "", "²", "٣"))],
)
def test_size_of_the_terminal_is_a_small_number(name: str, value: str, is_kept: bool) -> None:
    environment = {name: value}
    foreignvariables.clean(environment)
    assert (name in environment) is is_kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TERMINAL_WIDTH", "wide"),
        *((name, value) for name in ("TERMINAL_WIDTH", "COLUMNS", "LINES") for value in ("9" * 11, "²")),
    ],
)
def test_help_is_printed_whatever_the_size_of_the_terminal(name: str, value: str) -> None:
    """The library of the help converts the variables to numbers, and fills lines with spaces up to the width."""
    process = subprocess.run(
        [sys.executable, "-m", "dsf.cli", "--help"],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert "Dynamic scoring of clusters" in process.stdout
