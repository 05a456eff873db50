"""What becomes of messages that a channel has taken and not begun when it closes."""

from __future__ import annotations

import pytest
import redis

from dsf.redislink.transport import AtMostOnceQoS


class FakeChannel:
    """Puts messages back, or fails with what stands in `errors` for them."""

    do_restore = True

    def __init__(self, errors: dict[str, Exception]) -> None:
        self.errors = errors
        self.tried: list[str] = []
        self.restored: list[str] = []

    def _restore(self, message: str) -> None:
        self.tried.append(message)
        if message in self.errors:
            raise self.errors[message]
        self.restored.append(message)


def close(errors: dict[str, Exception], capsys: pytest.CaptureFixture[str]) -> FakeChannel:
    channel = FakeChannel(errors)
    qos = AtMostOnceQoS(channel)
    for name in ("first", "second", "third", "done"):
        qos.append(name, f"tag of {name}")
    qos.ack("tag of done")
    qos.restore_unacked_once()
    # Once: a second time, as at the end of the process, there is nothing left.
    qos.restore_unacked_once()
    printed = capsys.readouterr()
    assert "UNABLE TO RESTORE" not in printed.out + printed.err
    return channel


def test_all_go_back_oldest_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert close({}, capsys).restored == ["first", "second", "third"]


def test_a_redis_that_is_away_is_tried_once(capsys: pytest.CaptureFixture[str]) -> None:
    channel = close({"second": redis.ConnectionError("refused")}, capsys)
    assert (channel.tried, channel.restored) == (["first", "second"], ["first"])


@pytest.mark.parametrize("error", [redis.ResponseError("NOPERM"), KeyError("delivery_info"), ValueError("no JSON")])
def test_one_that_cannot_go_back_keeps_no_other_here(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert close({"first": error}, capsys).restored == ["second", "third"]
