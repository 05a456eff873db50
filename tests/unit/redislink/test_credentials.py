"""Credentials for Redis: precedence of settings, and files that change."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from dsf.errors import SettingsError
from dsf.redislink.link import Link
from dsf.worker.application import make_configuration
from tests.support.fixtures import SettingsFactory


def test_credentials_follow_the_precedence_of_settings(settings_factory: SettingsFactory, tmp_path: Path) -> None:
    url = "redis://user:inside@h"
    file = tmp_path / "password"
    file.write_text("from-file\n")

    def credentials(**values: object) -> tuple[str, ...]:
        return Link(settings_factory(redis_url=url, **values)).credentials.get_credentials()

    assert credentials() == ("user", "inside")
    assert credentials(redis_username="me") == ("me", "inside")
    assert credentials(redis_password_file=file) == ("user", "from-file")
    file.write_text("rotated")
    assert credentials(redis_password_file=file) == ("user", "rotated")
    url = "redis://:only@h"
    assert credentials() == ("only",)
    url = "redis://h"
    assert credentials() == ()


def test_password_file_is_read_again(settings_factory: SettingsFactory, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("one\n")
    credentials = Link(settings_factory(redis_url="rediss://u@h:1/0", redis_password_file=file)).credentials
    assert credentials.get_credentials() == ("u", "one")
    file.write_text("two\n")
    assert credentials.get_credentials() == ("u", "two")
    file.unlink()
    with pytest.raises(redis.AuthenticationError, match="DSF_REDIS_PASSWORD_FILE: cannot read"):
        credentials.get_credentials()


def test_missing_password_file_is_named_at_start(settings_factory: SettingsFactory, tmp_path: Path) -> None:
    settings = settings_factory(redis_password_file=tmp_path / "none")
    with pytest.raises(SettingsError, match="DSF_REDIS_PASSWORD_FILE: cannot read"):
        Link(settings)


@pytest.mark.parametrize("role", ["agent", "results", "beat", "hub", "cli"])
def test_celery_configuration_has_no_password(settings_factory: SettingsFactory, role: str) -> None:
    settings = settings_factory(redis_url="rediss://u:canary@h:1/0", role=role, cluster="c1", redis_username="me")
    values = make_configuration(settings)
    assert values["broker_url"] == "rediss://h:1/0"
    assert "canary" not in repr(values)


def test_flower_needs_it_in_the_url(settings_factory: SettingsFactory) -> None:
    settings = settings_factory(redis_url="rediss://:p%2Fw%40@h:1/0", role="flower", redis_username="me")
    assert make_configuration(settings)["broker_url"] == "rediss://me:p%2Fw%40@h:1/0"


def test_sentinels_have_passwords_of_their_own(settings_factory: SettingsFactory, tmp_path: Path) -> None:
    redis_file, sentinel_file = tmp_path / "mine", tmp_path / "theirs"
    redis_file.write_text("mine")
    sentinel_file.write_text("theirs")
    settings = settings_factory(
        redis_url="sentinel://a:1;sentinel://b:2/0",
        redis_username="me",
        redis_password_file=redis_file,
        redis_sentinel_master="hub",
        redis_sentinel_tls=True,
        redis_sentinel_password_file=sentinel_file,
        redis_ca_file="/ca",
    )
    link = Link(settings)
    assert link.credentials.get_credentials() == ("me", "mine")
    options = link.make_sentinel_options()
    assert options["credential_provider"].get_credentials() == ("theirs",)
    assert (options["ssl_ca_certs"], options["ssl_cert_reqs"]) == ("/ca", "required")
    # The repr names the file, not the password.
    assert "mine" not in repr(link).replace(str(redis_file), "")
    values = make_configuration(settings)
    # All sentinels are listed, so that Kombu can fail over.
    assert values["broker_url"] == "sentinel://a:1/0;sentinel://b:2/0"
    assert values["broker_transport_options"]["master_name"] == "hub"
    assert values["broker_transport_options"]["sentinel_kwargs"]["ssl"] is True
