"""Behaviour that all commands share: help, errors, exit codes, and a quick start."""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import redis
import requests
import yaml

from dsf import keys
from dsf.cli import context
from dsf.cli.main import app
from dsf.cli.script import complete_for_kubectl
from dsf.fleet import changes
from dsf.settings import Settings
from tests.integration.cli.conftest import Dsf, loaded
from tests.integration.exporter.fleet import SAMPLE, Fleet
from tests.support import forked
from tests.support.child import run_program
from tests.support.forked import Forked
from tests.support.redisserver import free_port
from tests.support.wait import PATIENCE, wait_for

COMMANDS = (
    *(
        ("status",),
        ("sync",),
        ("scores",),
        ("history",),
        ("changes",),
        ("placement",),
        ("explain",),
        ("rescore",),
        ("migrate",),
        ("version",),
        ("crds",),
    ),
    *(("credentials", name) for name in ("list", "rotate", "revoke")),
    *(("schedule", name) for name in ("list", "set", "pause", "resume", "reset")),
    *((name,) for name in ("demo", "up", "hub", "agent", "flower")),
    *(("scorer", name) for name in ("check", "test")),
    *(("backtest",), ("compare",)),
    *(("optimize",), ("optimizer",), ("mcp",)),
)


def environment(**values: str) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
    return {**variables, "COLUMNS": "100", **values}


def dsf_process(*arguments: str, **values: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dsf.cli", *arguments],
        env=environment(**values),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def nobody(tmp_path: Path) -> dict[str, str]:
    """Variables for commands that find no Redis."""
    return {"DSF_REDIS_URL": f"redis://user:sesame@127.0.0.1:{free_port()}/3", "XDG_STATE_HOME": str(tmp_path)}


def run(*arguments: str, **values: str) -> subprocess.CompletedProcess[str]:
    return forked.dsf(arguments, environment(**values), timeout=300)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_have_help_with_an_example(dsf: Dsf, command: tuple[str, ...]) -> None:
    result = dsf(*command, "--help")
    assert result.exit_code == 0
    assert f"Example: dsf {' '.join(command)}" in " ".join(result.stdout.split())


def test_help_says_which_hub_is_used(dsf: Dsf) -> None:
    text = " ".join(dsf("--help").stdout.split())
    positions = [text.index(hint) for hint in ("DSF_REDIS_URL", "`dsf demo`", "kubectl's context")]
    assert positions == sorted(positions)


def test_command_list_is_complete() -> None:
    names = {(info.name or info.callback.__name__,) for info in app.registered_commands if info.callback}
    groups = {
        (str(group.name), str(info.name or (info.callback and info.callback.__name__)))
        for group in app.registered_groups
        if group.typer_instance
        for info in group.typer_instance.registered_commands
    }
    assert names | groups == set(COMMANDS)


def test_missing_command_prints_help_and_is_a_usage_error(dsf: Dsf) -> None:
    assert dsf().exit_code == 2
    assert dsf("statsu").exit_code == 2
    assert "Did you mean" in dsf("statsu").stderr


@pytest.mark.parametrize(("command", "service"), [("beat", "beat"), ("results", "results"), ("exporter", "web")])
def test_service_as_command_is_a_usage_error_that_names_the_hub_command(dsf: Dsf, command: str, service: str) -> None:
    result = dsf(command, "--help")
    assert result.exit_code == 2
    assert result.stderr == f"error: there is no command {command}: run `dsf hub --target {service}`\n"


def test_unknown_target_is_a_usage_error_that_names_the_option(dsf: Dsf) -> None:
    result = dsf("hub", "--target", "web,nosuch")
    assert result.exit_code == 2
    assert "Invalid value for --target: nosuch; choose all, or some of" in " ".join(result.stderr.split())
    assert "DSF_TARGET" not in result.stderr


def test_version(dsf: Dsf) -> None:
    assert dsf("version").stdout.startswith("dsf ")
    assert set(loaded(dsf("version", "-o", "json"))) == {"dsf", "python", "celery"}


def test_version_option_prints_the_version(dsf: Dsf) -> None:
    result = dsf("--version")
    assert (result.exit_code, result.stdout) == (0, f"dsf {metadata.version('dynamic-scoring-framework')}\n")


def test_program_for_kubectl_completes_a_command() -> None:
    script = Path(sys.executable).with_name("kubectl_complete-dsf")
    result = subprocess.run([script, "schedule", "pau"], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.splitlines() == ["pause", ":4"]


@pytest.mark.parametrize(
    ("typed_words", "completion"), [((), "status"), (("sta",), "status"), (("status", "--out"), "--output")]
)
def test_kubectl_completes_commands_and_options(
    typed_words: tuple[str, ...],
    completion: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-dsf", *typed_words])
    for name in ("_DSF_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
        # The function sets them; they are removed after the test.
        monkeypatch.setenv(name, "")
    with pytest.raises(SystemExit) as raised:
        complete_for_kubectl()
    assert not raised.value.code
    *completions, directive = capsys.readouterr().out.splitlines()
    assert completion in completions
    assert directive == ":4"


def test_crds_command_prints_the_crds_of_the_models(dsf: Dsf) -> None:
    names = [crd["metadata"]["name"] for crd in yaml.safe_load_all(dsf("crds").stdout) if crd]
    kinds = ("dynamicscorers", "dynamicscoringconfigs", "scoringauthentications")
    assert names == [f"{plural}.dynamic-scoring.open-cluster-management.io" for plural in kinds]
    assert [crd["metadata"]["name"] for crd in loaded(dsf("crds", "-o", "json"))["items"]] == names


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom dsf.cli.main import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('redis', 'celery', 'kubernetes', 'fastapi', 'structlog') if name in sys.modules])"
    )
    process = run_program([sys.executable, "-c", code], env=environment())
    assert process.stdout.splitlines()[-1] == "[]"


#: All modules that read-only commands may load: each further one costs CPU time before the first line.
LIGHT = {
    *("dsf", "typer", "shellingham", "rich", "redis", "hiredis", "yaml"),
    *("pydantic", "pydantic_core", "pydantic_settings", "dotenv"),
    *("annotated_doc", "annotated_types", "typing_extensions", "typing_inspection"),
    # By redis-py, where it is there.
    *("cryptography", "cython_runtime", "opentelemetry"),
}


def test_command_line_itself_loads_no_model() -> None:
    code = "import sys, dsf.cli.main; print(*sys.modules)"
    modules = run_program([sys.executable, "-c", code], env=environment(), check=True).stdout.split()
    assert {"pydantic", "redis", "rich.console"}.isdisjoint(modules)


def test_reading_commands_load_only_needed_modules(redis_url: str, fleet: Fleet, tmp_path: Path) -> None:
    code = (
        # The SDK of OpenTelemetry, which redis-py loads where it is, is there for tests only.
        "import sys\nsys.modules['opentelemetry.sdk'] = None\nfrom dsf.cli.main import run\n"
        "for command in ('status', 'scores', 'schedule list', 'history sample-scorer -c worker01'):\n"
        "    sys.argv[1:] = command.split()\n"
        "    try:\n        run()\n    except SystemExit:\n        pass\n"
        "names = {name.partition('.')[0] for name in sys.modules if sys.modules[name]} - sys.stdlib_module_names\n"
        "print(*sorted(name for name in names if not name.startswith('_')))"
    )
    values = environment(DSF_REDIS_URL=redis_url, XDG_STATE_HOME=str(tmp_path))
    process = run_program([sys.executable, "-c", code], env=values)
    assert set(process.stdout.splitlines()[-1].split()) <= LIGHT


def test_log_writes_errors_at_level_error(tmp_path: Path) -> None:
    code = (
        "import dsf.log\nfrom dsf.settings import Settings\nlog = dsf.log.get('x')\n"
        "dsf.log.prepare(Settings(log_level='ERROR', log_format='json'))\n"
        "log.warning('not this')\nlog.error('this', cluster='worker01')"
    )
    process = run_program([sys.executable, "-c", code], env=environment())
    (line,) = process.stderr.splitlines()
    assert (json.loads(line)["event"], json.loads(line)["cluster"]) == ("this", "worker01")


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("scores",),
        ("history", SAMPLE, "--cluster", "worker01"),
        ("rescore", SAMPLE),
        ("schedule", "list"),
        ("schedule", "set", SAMPLE, "--interval", "5"),
    ],
)
def test_unreachable_redis_is_reported_in_one_line_with_its_variable(
    nobody: dict[str, str], command: tuple[str, ...]
) -> None:
    process = run(*command, **nobody)
    assert (process.returncode, process.stdout) == (1, "")
    (line,) = process.stderr.splitlines()
    port = nobody["DSF_REDIS_URL"].split(":")[-1]
    assert line.startswith(f"error: cannot use Redis at redis://127.0.0.1:{port} (")
    assert line.endswith("check DSF_REDIS_URL")
    assert "sesame" not in line


def test_invalid_setting_names_the_variable(nobody: dict[str, str]) -> None:
    process = run("status", **nobody, DSF_QUEUE_LIMIT="many")
    assert process.returncode == 1
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: wrong setting: DSF_QUEUE_LIMIT:")


@pytest.mark.parametrize(
    "command",
    [
        ("status", "nobody"),
        ("history", SAMPLE, "--cluster", "mars"),
        ("changes", SAMPLE, "--cluster", "mars"),
        ("rescore", "nobody"),
        ("rescore", SAMPLE, "-c", "worker02", "-c", "mars"),
        *(("credentials", action, "--cluster", "mars") for action in ("list", "rotate", "revoke")),
        *(("schedule", *change, "nobody") for change in (("set", "-i", "5"), ("pause",), ("resume",), ("reset",))),
        *(
            ("schedule", *change, SAMPLE, "-c", "mars")
            for change in (("set", "-i", "5"), ("pause",), ("resume",), ("reset",))
        ),
    ],
    ids=" ".join,
)
def test_unknown_name_is_an_error_that_lists_the_registered_names(
    dsf: Dsf, fleet: Fleet, command: tuple[str, ...]
) -> None:
    scorer, cluster = "no scorer 'nobody' runs; registered: ", "no cluster 'mars' is accepted; registered: "
    expected_error = f"{scorer}sample-scorer, static-scorer" if "nobody" in command else f"{cluster}worker01, worker02"
    result = dsf(*command)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {expected_error}\n")
    # No command had an effect, so no change is recorded.
    assert fleet.redis.hlen(keys.OVERRIDES) == fleet.redis.llen(keys.spoke_queue("worker02")) == 0
    assert changes.read_changes(fleet.redis).changes == []


def test_running_demo_is_detected(
    dsf: Dsf, fleet: Fleet, redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DSF_REDIS_URL")
    assert "no demo runs here" in dsf("status").stderr
    with context.publish_demo(redis_url=redis_url):
        assert dsf("status", SAMPLE).exit_code == 0
    assert dsf("status", SAMPLE).exit_code == 1


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DSF_REDIS_USERNAME", "somebody"),
        ("DSF_REDIS_PASSWORD_FILE", "/nowhere/password"),
    ],
)
def test_settings_of_another_redis_are_ignored_for_a_running_demo(
    dsf: Dsf, fleet: Fleet, redis_url: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.delenv("DSF_REDIS_URL")
    monkeypatch.setenv(variable, value)
    fleet.redis.execute_command("ACL", "SETUSER", "owner", "on", ">sesame", "allkeys", "+@all")
    try:
        with context.publish_demo(redis_url=redis_url.replace("redis://", "redis://owner:sesame@")):
            result = dsf("status", SAMPLE)
    finally:
        fleet.redis.execute_command("ACL", "DELUSER", "owner")
    assert result.exit_code == 0, result.stderr


@contextlib.contextmanager
def watched(tmp_path: Path, *arguments: str, **values: str) -> Iterator[Forked]:
    """Run `dsf scores --watch`, with its output and errors in the files `out` and `err`."""
    watch_arguments = ("scores", "--watch", *arguments)
    out, err = tmp_path / "out", tmp_path / "err"
    err.touch()
    process = Forked("dsf.cli", out, environment(**values), arguments=watch_arguments, inherit=False, errors=err)
    try:
        yield process
    finally:
        process.kill()


def lines(file: Path) -> list[str]:
    """Return the complete lines."""
    return file.read_text().rpartition("\n")[0].splitlines()


def test_watch_runs_until_interrupted(fleet: Fleet, redis_url: str, tmp_path: Path) -> None:
    values = {"DSF_REDIS_URL": redis_url, "XDG_STATE_HOME": str(tmp_path)}
    out = tmp_path / "out"
    with watched(tmp_path, "--cluster", "worker01", "-o", "json", **values) as process:
        first = json.loads(wait_for(lambda: lines(out))[0])
        assert first["scores"][0]["items"][0]["value"] == 12
        fleet.failure("worker01")
        wait_for(lambda: json.loads(lines(out)[-1])["scores"][0]["failing"] == 1, 20, "the change to be seen")
        process.signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert (tmp_path / "err").read_text() == ""


def test_watch_survives_redis(tmp_path: Path, nobody: dict[str, str]) -> None:
    with watched(tmp_path, **nobody) as process:
        error_lines = wait_for(lambda: printed_lines if len(printed_lines := lines(tmp_path / "err")) >= 2 else [], 20)
        assert all(line.startswith("error: cannot use Redis at") for line in error_lines)
        process.signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130


def test_closed_output_pipe_is_not_reported_as_error(fleet: Fleet, redis_url: str, tmp_path: Path) -> None:
    values = {"DSF_REDIS_URL": redis_url, "XDG_STATE_HOME": str(tmp_path)}
    with dsf_process("scores", "--watch", **values) as process:
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE) == 1
        assert process.stderr
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("command", "called"),
    [
        ("agent --cluster worker01", {"function": "dsf.agent.main:run", "role": "agent", "cluster": "worker01"}),
    ],
)
def test_process_command_runs_its_function_with_options_as_settings(
    dsf: Dsf, monkeypatch: pytest.MonkeyPatch, command: str, called: dict[str, str]
) -> None:
    """Demo and `dsf up` start these processes as modules; other tests cover the functions."""
    run: dict[str, object] = {}
    monkeypatch.setattr(
        "dsf.cli.processes._run_process", lambda function, **values: run.update(values, function=function)
    )
    assert dsf(*command.split()).exit_code == 0
    assert {name: value for name, value in run.items() if value is not None} == called
    assert callable(pkgutil.resolve_name(called["function"]))
    assert called.keys() - {"function"} <= Settings.model_fields.keys()


def test_hub_runs_the_services_of_its_targets(redis_url: str, tmp_path: Path) -> None:
    values = {"DSF_REDIS_URL": redis_url, "XDG_STATE_HOME": str(tmp_path), "DSF_PROBE_PORT": "0"}
    with dsf_process("hub", "--target", "web,beat", "--port", "0", "--backend", "dir", **values) as process:
        assert process.stderr
        lines = [process.stderr.readline()]
        while "hub runs" not in lines[-1]:
            assert lines[-1], lines
            lines.append(process.stderr.readline())
        assert "services=['beat', 'web']" in lines[-1]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


@pytest.mark.parametrize("command", ["flower"])
def test_celery_processes_run_by_their_commands(
    command: str, redis_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    values = {"DSF_REDIS_URL": redis_url, "XDG_STATE_HOME": str(tmp_path), "FLOWER_UNAUTHENTICATED_API": "true"}
    port = free_port()
    arguments = ("--port", str(port)) if command == "flower" else ()
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "dsf.cli", command, *arguments],
            env=environment(**values),
            cwd=tmp_path,
            stdout=stream,
            stderr=stream,
        )
    try:
        if command == "flower":
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: _status("GET", f"{url}/healthcheck") == 200, 40, "Flower to answer")
            # Its user may only read.
            assert _status("GET", f"{url}/tasks") == 200
            assert _status("POST", f"{url}/api/worker/shutdown/x") in (403, 405)
        else:
            wait_for(lambda: redis_client.exists(keys.BEAT_LOCK), 40, "beat to be active")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM), log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(PATIENCE)
    # The process has been replaced by the embedded command, which left no files.
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def _status(method: str, url: str) -> int | None:
    with requests.Session() as session:
        session.trust_env = False
        try:
            return session.request(method, url, timeout=300).status_code
        except requests.ConnectionError:
            return None


def test_optimize_reports_that_the_demo_has_nothing_to_plan(
    dsf: Dsf, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DSF_REDIS_URL")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with context.publish_demo(redis_url=redis_url):
        result = dsf("optimize", "-f", "samples/optimization/params-performance.json", "--dry-run")
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: dsf optimize needs a hub on Kubernetes: ")
    assert "the demo and `dsf up` do not have" in line
