"""Notices that are stored, missing or written again."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, call

import pytest
import redis

from dsf import keys
from dsf.store import notices
from dsf.store.notices import ClusterNotice, Notices, ScorerNotice
from tests.support.memorystore import memory_client

STORED: dict[str, Any] = {
    keys.SCORER_NOTICES: ["cpu", "gone"],
    keys.CONFIG_READS: ["cpu"],
    keys.CLUSTER_NOTICES: ["a", "left"],
}
NOTICE = ClusterNotice(name="c", labels={"env": "a"})
CHANGED = ClusterNotice(name="c", labels={"env": "b"})


def test_unlisted_notices_are_deleted_and_lost_ones_returned() -> None:
    client = Mock(hkeys=STORED.get)
    assert Notices(client).remove_others(["cpu", "new"], {"a": "", "b": ""}.keys()) == {"b"}
    assert client.hdel.mock_calls == [call(keys.SCORER_NOTICES, "gone"), call(keys.CLUSTER_NOTICES, "left")]
    assert Notices(client).remove_others(["cpu", "gone"]) == set()
    assert len(client.hdel.mock_calls) == 2


def test_notice_is_rewritten_only_after_a_change_or_a_reset() -> None:
    client = memory_client()
    notice_store = Notices(client)
    notice_store.write_cluster(NOTICE)
    client.delete(keys.CLUSTER_NOTICES)
    notice_store.write_cluster(NOTICE)
    assert notice_store.read_clusters() == {}
    notice_store.write_cluster(CHANGED)
    assert notice_store.read_clusters() == {"c": CHANGED}
    client.delete(keys.CLUSTER_NOTICES)
    notice_store.forget_written()
    notice_store.write_cluster(CHANGED)
    assert notice_store.read_clusters() == {"c": CHANGED}


def test_removed_notice_is_written_again() -> None:
    notice_store = Notices(memory_client())
    notice_store.write_cluster(NOTICE)
    notice_store.write_scorer(ScorerNotice(name="c"))
    notice_store.forget_cluster("c")
    assert notice_store.read_clusters() == {}
    notice_store.write_cluster(NOTICE)
    assert notice_store.read_clusters() == {"c": NOTICE}


def test_notice_lost_by_redis_is_written_again() -> None:
    client = memory_client()
    notice_store = Notices(client)
    notice_store.write_cluster(NOTICE)
    client.delete(keys.CLUSTER_NOTICES)
    assert notice_store.remove_others([], ["c"]) == {"c"}
    notice_store.write_cluster(NOTICE)
    assert notice_store.read_clusters() == {"c": NOTICE}
    notice_store.remove_others([], [])
    notice_store.write_cluster(NOTICE)
    assert notice_store.read_clusters() == {"c": NOTICE}


def test_failed_write_is_not_assumed_done(monkeypatch: pytest.MonkeyPatch) -> None:
    client = memory_client()
    notice_store = Notices(client)
    notice_store.write_cluster(NOTICE)
    write_at_once = notices.run_atomically

    def without_answer(*arguments: object) -> None:
        write_at_once(*arguments)  # type: ignore[arg-type]
        raise redis.TimeoutError

    with monkeypatch.context() as slow:
        slow.setattr(notices, "run_atomically", without_answer)
        with pytest.raises(redis.TimeoutError):
            notice_store.write_cluster(CHANGED)
    notice_store.write_cluster(NOTICE)
    assert notice_store.read_clusters() == {"c": NOTICE}
