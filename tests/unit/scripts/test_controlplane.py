"""scripts/controlplane with missing programs and stand-ins of `go` and setup-envtest; and scripts/test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.child import run_program
from tests.support.wait import wait_for

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "controlplane"
#: `go list -m` runs first; a build writes the file after -o.
_GO = """
[ "$1" = list ] && exit 0
while [ "$1" != -o ]; do shift; done
echo "#!/bin/sh" > "$2"
"""
_ENVTEST = """
echo "$@" > "$HOME/asked"
folder=$XDG_DATA_HOME/kubebuilder-envtest/k8s/1.36.2-linux-amd64
mkdir -p "$folder"
for name in etcd kube-apiserver kubectl; do echo "#!/bin/sh" > "$folder/$name"; chmod +x "$folder/$name"; done
printf "%s" "$folder"
"""


def _controlplane(home: Path, *arguments: str, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/controlplane with only these shell scripts and a few tools on PATH."""
    tools = home / "tools"
    tools.mkdir(exist_ok=True)
    for name, code in programs.items():
        path = tools / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{code}")
        path.chmod(0o755)
    return run_program(
        [sys.executable, SCRIPT, *arguments],
        env={
            "PATH": f"{tools}:/usr/bin:/bin",
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_DATA_HOME": str(home / "data"),
        },
    )


def test_setup_envtest_downloads_what_it_has(tmp_path: Path) -> None:
    process = _controlplane(tmp_path, "etcd", "kube-apiserver", "kubectl", setup_envtest=_ENVTEST)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == str(tmp_path / "data" / "kubebuilder-envtest" / "k8s" / "1.36.2-linux-amd64")
    assert (tmp_path / "asked").read_text() == "use 1.36.x --print path\n"
    again = _controlplane(tmp_path, "--no-build", "kubectl", setup_envtest="exit 1")
    assert again.stdout == process.stdout, "what is downloaded is found without asking"


def test_go_builds_what_setup_envtest_does_not_get_and_says_before_what_it_costs(tmp_path: Path) -> None:
    failing = "echo no network >&2; exit 2"
    process = _controlplane(tmp_path, "etcd", "helm", setup_envtest=failing, go=_GO)
    assert process.returncode == 0, process.stderr
    assert "setup-envtest: no network; Go builds them" in process.stderr
    assert process.stderr.index("10 to 20 minutes") < process.stderr.index("building etcd")
    folder = Path(process.stdout.strip())
    assert sorted(path.name for path in folder.iterdir()) == ["etcd", "helm"]
    again = _controlplane(tmp_path, "etcd", "helm", go="exit 1")
    assert again.stdout == process.stdout
    assert "minutes" not in again.stderr


def test_module_cache_folders_are_independent(tmp_path: Path) -> None:
    """Each module has a folder in the cache, so a new Helm does not rebuild Kubernetes."""
    _controlplane(tmp_path, "etcd", "helm", go=_GO)
    folders = sorted(path.name.partition("-")[0] for path in (tmp_path / "cache/dsf/controlplane").glob("*-*/"))
    assert folders == ["etcd", "helm", "links"]


_SUITE = """
import os
import pytest

@pytest.mark.kube
def test_on_an_api_server():
    assert os.path.exists({built!r})
    with open({log!r}, "a") as file:
        file.write("kube ")

def test_alone():
    with open({log!r}, "a") as file:
        file.write("core ")
"""


def test_core_tests_run_while_the_control_plane_is_built(tmp_path: Path) -> None:
    """Run a copy of scripts/test with a stand-in of the build that ends after the core's tests."""
    log, built = tmp_path / "log", tmp_path / "built"
    _copy(tmp_path, f"until [ -e {log} ]; do sleep 0.1; done; touch {built}")
    (tmp_path / "test_suite.py").write_text(_SUITE.format(log=str(log), built=str(built)))
    (tmp_path / "test_other.py").write_text("def test_broken():\n    assert False\n")
    process = run_program([tmp_path / "scripts" / "test", "all"], cwd=tmp_path, env=_environment(), timeout=170)
    assert log.read_text() == "core kube ", process.stdout + process.stderr
    assert process.returncode == 1, "a failure of the first part counts after the second"


@pytest.mark.parametrize(("tests", "expected"), [("core", "core "), ("kube", "kube ")])
def test_test_set_runs_only_its_tests(tmp_path: Path, tests: str, expected: str) -> None:
    log, built = tmp_path / "log", tmp_path / "built"
    _copy(tmp_path, f"touch {built}")
    (tmp_path / "test_suite.py").write_text(_SUITE.format(log=str(log), built=str(built)))
    process = run_program([tmp_path / "scripts" / "test", tests], cwd=tmp_path, env=_environment(), timeout=170)
    assert (process.returncode, log.read_text()) == (0, expected), process.stdout + process.stderr
    assert built.exists() == (tests == "kube")


def test_unknown_set_is_refused_with_the_usage(tmp_path: Path) -> None:
    _copy(tmp_path, "exit 1")
    process = run_program([tmp_path / "scripts" / "test", "most"], cwd=tmp_path, env=_environment(), timeout=170)
    assert process.returncode == 2
    assert "usage: scripts/test core|kube|browser|all" in process.stderr


def test_ctrl_c_ends_the_build_and_later_tests(tmp_path: Path) -> None:
    """Pytest catches the signal, and the script continues."""
    pid, later = tmp_path / "pid", tmp_path / "later"
    _copy(tmp_path, f"echo $$ >{pid}; exec sleep 300")
    (tmp_path / "test_suite.py").write_text(
        "import pathlib, time\n\ndef test_interrupt():\n"
        f"    while not pathlib.Path({str(pid)!r}).exists() or not pathlib.Path({str(pid)!r}).read_text():\n"
        "        time.sleep(0.05)\n"
        "    raise KeyboardInterrupt\n\n"
        f"def test_later():\n    pathlib.Path({str(later)!r}).touch()\n"
    )
    process = run_program([tmp_path / "scripts" / "test", "all"], cwd=tmp_path, env=_environment(), timeout=170)
    assert (process.returncode, later.exists()) == (2, False), process.stdout + process.stderr

    def has_ended() -> bool:
        try:
            return psutil.Process(int(pid.read_text())).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_for(has_ended, 20, "the build to end")


def _copy(folder: Path, controlplane: str) -> None:
    scripts = folder / "scripts"
    scripts.mkdir()
    (scripts / "test").write_text((ROOT / "scripts" / "test").read_text())
    (scripts / "controlplane").write_text(f"#!/bin/sh\n{controlplane}\n")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for path in (scripts / "test", scripts / "controlplane", folder / ".venv" / "bin" / "python"):
        path.chmod(0o755)


def _environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DSF_"))}
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    return {**environment, **alone, "PYTHONPATH": str(ROOT), "WORKERS": "0"}
