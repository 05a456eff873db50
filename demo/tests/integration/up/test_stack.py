"""The stack's own connection to Redis: its user, and its messages on errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dsf.up.ports import Ports
from dsf.up.stack import Stack, StackOptions
from dsf.up.supervisor import Supervisor
from tests.support.redisserver import free_port

pytestmark = pytest.mark.usefixtures("settings_factory")


@pytest.fixture
def own_url(redis_url: str, redis_client: redis.Redis) -> Iterator[str]:
    """URL of a Redis user with a password."""
    redis_client.execute_command("ACL", "SETUSER", "owner", "on", ">sesame", "allkeys", "+@all")
    yield redis_url.replace("redis://", "redis://owner:sesame@")
    redis_client.execute_command("ACL", "DELUSER", "owner")


def make(folder: Path, url: str, messages: list[str]) -> Stack:
    options = StackOptions(folder, folder / "_out", folder / "state", redis_url=url, flower=False)
    return Stack(options, Supervisor(folder / "state", messages.append), Ports(messages.append), messages.append)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("REDIS_USERNAME", "somebody"), ("REDIS_PASSWORD_FILE", "/nowhere/password")],
)
def test_redis_settings_of_the_shell_are_ignored(
    tmp_path: Path, own_url: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(f"DSF_{variable}", value)
    with make(tmp_path, own_url, []) as stack:
        assert stack.client.ping()


def test_refused_password_is_reported_once_per_occurrence(
    tmp_path: Path, own_url: str, redis_client: redis.Redis
) -> None:
    messages: list[str] = []

    def follow_anew() -> None:
        # Redis asks for the password at a connect only.
        stack.client.connection_pool.disconnect()
        stack.update_agents()

    with make(tmp_path, own_url, messages) as stack:
        messages.clear()
        follow_anew()
        assert not messages
        redis_client.execute_command("ACL", "SETUSER", "owner", "resetpass", ">changed")
        follow_anew()
        follow_anew()
        (message,) = messages
        assert "refuses user or password" in message
        assert "sesame" not in message
        redis_client.execute_command("ACL", "SETUSER", "owner", "resetpass", ">sesame")
        follow_anew()
        redis_client.execute_command("ACL", "SETUSER", "owner", "resetpass", ">changed")
        follow_anew()
        assert len(messages) == 2, "it is news again"


def test_unreachable_embedded_redis_is_not_reported(tmp_path: Path) -> None:
    messages: list[str] = []
    with make(tmp_path, f"redis://127.0.0.1:{free_port()}/0", messages) as stack:
        messages.clear()
        stack.update_agents()
    assert not messages
