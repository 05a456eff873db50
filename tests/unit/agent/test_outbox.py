"""What a full mailbox takes."""

from __future__ import annotations

import pytest
import redis

from dsf import keys
from dsf.agent.outbox import Mail, Mailbox

CLUSTER = "worker01"


@pytest.fixture
def mailbox(redis_client: redis.Redis) -> Mailbox:
    """One with room for one result."""
    for slot in keys.mail_slots(CLUSTER)[1:]:
        redis_client.set(slot, "older")
    return Mailbox(redis_client, CLUSTER)


@pytest.mark.parametrize(
    ("mail", "is_taken"),
    [
        (Mail("sample", "3", True), True),
        # Older than what waits, a reason without a score, and a result of another scorer.
        (Mail("sample", "1", True), False),
        (Mail("sample", "3", False), False),
        (Mail("other", "3", True), False),
    ],
)
def test_a_newer_score_replaces_the_last_one_of_its_scorer(
    mailbox: Mailbox, redis_client: redis.Redis, mail: Mail, is_taken: bool
) -> None:
    assert mailbox.put(Mail("sample", "2", True), b"first")
    assert mailbox.put(mail, b"second") is is_taken
    assert redis_client.get(keys.mail_slot(CLUSTER, 0)) == ("second" if is_taken else "first")
    assert redis_client.exists(keys.mail_flag(CLUSTER))
