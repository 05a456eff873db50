"""The list of changes skips unreadable entries."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from dsf.fleet.changes import read_after

GOOD = '{"action":"rescore","by":"ann"}'


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"action":' * 100_000, "[" * 100_000])
def test_unreadable_change_hides_no_other(text: str) -> None:
    client = Mock(**{"xrange.return_value": [("1-0", {"change": text}), ("2-0", {"change": GOOD})]})
    (_, bad), (id_, good) = read_after(client, "0-0")
    assert bad is None
    assert good is not None
    assert (id_, good.id, good.by) == ("2-0", "2-0", "ann")
