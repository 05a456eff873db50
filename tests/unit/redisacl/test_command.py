"""`python -m dsf.redisacl`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsf.redisacl.__main__ import main
from dsf.redisacl.rules import hub_roles
from dsf.redisacl.users import User, render_acl_file

NEEDED = ("hub", "beat", "results")


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    """Create a folder like a mounted Secret."""
    folder = tmp_path / "passwords"
    folder.mkdir()
    for role in (*NEEDED, "flower"):
        (folder / role).write_text(f"a-long-password-of-{role}\n")
    (folder / "..data").mkdir()
    (folder / "unknown").write_text("x")
    return folder


def test_command_prints_the_acl_file(passwords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--passwords", str(passwords)]) == 0
    text, stderr = capsys.readouterr()
    assert (
        "no user for controller, web, flower-tasks, operator, sentinel, replica, optimizer: no such file in" in stderr
    )
    names = [line.split()[1] for line in text.splitlines()]
    assert names == ["default", "dsf-beat", "dsf-results", "dsf-flower", "dsf-hub"]
    assert "a-long-password" not in text


def test_command_writes_the_acl_file_and_keeps_clusters(
    passwords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users.acl"
    cluster = User.of_cluster("c1", "x")
    file.write_text(render_acl_file([cluster]) + "user somebody on nopass +@all ~*\n")
    assert main(["--passwords", str(passwords), "--file", str(file)]) == 0
    lines = file.read_text().splitlines()
    assert lines[-1] == cluster.format_line()
    assert not any(line.startswith("user somebody") for line in lines)
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".users")] == []
    assert "a-long-password" not in capsys.readouterr().err


def test_command_reports_no_role_if_all_have_passwords(passwords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for role in hub_roles():
        (passwords / role).write_text(f"a-long-password-of-{role}")
    assert main(["--passwords", str(passwords)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [("short", "at least 16"), ("none", "no file with a password for hub")],
)
def test_unusable_passwords_are_named(
    passwords: Path, capsys: pytest.CaptureFixture[str], change: str, words: str
) -> None:
    if change == "short":
        (passwords / "beat").write_text("short-secret")
    else:
        for role in NEEDED:
            (passwords / role).unlink()
    assert main(["--passwords", str(passwords)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "short-secret" not in captured.err + captured.out


def test_unwritable_acl_file_is_an_error(passwords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--passwords", str(passwords), "--file", "/no/such/folder/users.acl"]) == 2
    assert "No such file or directory" in capsys.readouterr().err
