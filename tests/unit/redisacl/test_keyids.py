"""Validity of credentials over time."""

from __future__ import annotations

from dsf.messages import MAX_KEY_ID, derive_key
from dsf.redisacl.clusterusers import derive_password
from dsf.redisacl.keyids import KeyIds

HOUR = 3600.0

SECRET = bytes(range(32))


def test_rotation_waits_for_the_agent() -> None:
    first = KeyIds()
    assert first.valid == (1,)
    both = first.rotate(100.0)
    assert both.valid == (2, 1)
    assert both.end_overlap_if_due(101.0, None) == both
    assert both.end_overlap_if_due(101.0, 1) == both
    assert both.end_overlap_if_due(101.0, 2).valid == (2,)


def test_rotation_ends_after_the_grace_period() -> None:
    both = KeyIds().rotate(100.0)
    assert both.end_overlap_if_due(100.0 + HOUR - 1, 1).valid == (2, 1)
    assert both.end_overlap_if_due(100.0 + HOUR, 1).valid == (2,)


def test_rotation_stamped_by_a_fast_clock_lasts_no_longer() -> None:
    ids = KeyIds().rotate(10_000.0).end_overlap_if_due(1000.0, None)
    assert ids == KeyIds(2, 1, 1000.0)
    assert ids.end_overlap_if_due(1000.0 + HOUR, None).valid == (2,)


def test_rotation_lasts_at_least_the_delay_of_a_mounted_secret() -> None:
    both = KeyIds().rotate(100.0)
    assert both.end_overlap_if_due(279.0, 2, min_age=180.0) == both
    assert both.end_overlap_if_due(280.0, 2, min_age=180.0).valid == (2,)
    assert both.end_overlap_if_due(280.0, 1, min_age=180.0) == both
    # The wait has this minimum, whatever the grace time is.
    assert both.end_overlap_if_due(150.0, None, min_age=180.0, grace=10.0) == both


def test_key_ids_survive_dump_and_parse_and_bad_text_is_refused() -> None:
    for ids in (KeyIds(), KeyIds(4, 3, 1700000000.25), KeyIds(7, None, 5.0)):
        assert KeyIds.parse(ids.dump()) == ids
    for text in (
        *("", "[]", "{}", "null", "7", '{"current": 0, "previous": null, "since": 0}'),
        *('{"current": 2, "previous": 2, "since": 0}', '{"current": 2, "previous": "1", "since": 0}'),
        *('{"current": 2, "previous": 0, "since": 0}', '{"current": "x", "previous": null, "since": 0}'),
        *('{"current": 1e400, "previous": null, "since": 0}', '{"current": 1, "previous": null, "since": NaN}'),
        *(f'{{"current": 1, "previous": null, "since": {10**400}}}', "[" * 100_000),
        f'{{"current": {MAX_KEY_ID + 1}, "previous": null, "since": 0}}',
    ):
        assert KeyIds.parse(text) is None


def test_at_most_two_are_valid_and_a_revoked_one_never_is() -> None:
    assert KeyIds().rotate(1.0).rotate(2.0).valid == (3, 2)
    assert KeyIds().revoke(1.0).valid == (2,)
    assert KeyIds().rotate(1.0).revoke(2.0).valid == (3,)
    settled = KeyIds(5)
    assert settled.end_overlap_if_due(1e9, 5) is settled


def test_passwords_differ_by_cluster_id_and_from_signing_keys() -> None:
    derived_passwords = {
        derive_password(SECRET, cluster, number) for cluster in ("c1", "c10", "1/c1") for number in (1, 10)
    }
    assert len(derived_passwords) == 6
    assert all(len(password) == 64 for password in derived_passwords)
    assert derive_key(SECRET, "c1", 1).secret.hex() not in derived_passwords
    assert derive_password(SECRET, "c1", 1) == derive_password(SECRET, "c1", 1)
    assert derive_password(b"x" * 32, "c1", 1) not in derived_passwords
