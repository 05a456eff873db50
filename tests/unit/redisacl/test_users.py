"""The text of an ACL file."""

from __future__ import annotations

import hashlib

import pytest

from dsf.redisacl.users import User, make_hub_users, render_acl_file, render_acl_template


def test_acl_file_has_no_password_and_no_default_user() -> None:
    users = make_hub_users({"beat": "secret-of-beat", "results": "secret-of-results"})
    text = render_acl_file(users)
    lines = text.splitlines()
    assert lines[0] == "user default off resetpass ~* &* +@all"
    assert [line.split()[1] for line in lines[1:]] == ["dsf-beat", "dsf-results"]
    assert "secret" not in text
    assert f"#{hashlib.sha256(b'secret-of-beat').hexdigest()}" in lines[1]


def test_each_user_needs_a_password() -> None:
    assert all(line.split()[3].startswith("#") for line in render_acl_template().splitlines()[1:])
    with pytest.raises(ValueError, match="dsf-beat needs a password"):
        User.of_hub("beat")
    with pytest.raises(ValueError, match="spoke-c1 needs a password"):
        User.of_cluster("c1")


def test_users_of_clusters_are_kept_when_the_file_is_rewritten() -> None:
    cluster = User.of_cluster("c1", "x").format_line()
    existing = "\n".join(
        ["user default on nopass +@all", "user dsf-beat on nopass", cluster, "user other on", "", "#x"]
    )
    lines = render_acl_file(make_hub_users({"beat": "new"}), existing).splitlines()
    assert lines[-1] == cluster
    assert [line.split()[1] for line in lines] == ["default", "dsf-beat", "spoke-c1"]


def test_two_passwords_during_a_rotation() -> None:
    user = User.of_cluster("c1", "old", "new")
    assert len([word for word in user.format_line().split() if word.startswith("#")]) == 2
    assert user.format_setuser_rules()[:2] == ["reset", "on"]
