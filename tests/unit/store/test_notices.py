"""Which notices are kept, and which are missing."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, call

from dsf import keys
from dsf.store.notices import Notices

STORED: dict[str, Any] = {
    keys.SCORER_NOTICES: ["cpu", "gone"],
    keys.CONFIG_READS: ["cpu"],
    keys.CLUSTER_NOTICES: ["a", "left"],
}


def test_others_are_forgotten_and_lost_ones_named() -> None:
    client = Mock(hkeys=STORED.get)
    assert Notices(client).keep(["cpu", "new"], {"a": "", "b": ""}.keys()) == {"b"}
    assert client.hdel.mock_calls == [call(keys.SCORER_NOTICES, "gone"), call(keys.CLUSTER_NOTICES, "left")]
    assert Notices(client).keep(["cpu", "gone"]) == set()
    assert len(client.hdel.mock_calls) == 2
