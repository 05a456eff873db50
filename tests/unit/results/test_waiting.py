"""Results that wait in a mailbox or for an available Redis."""

from __future__ import annotations

from typing import Any, cast

import pytest
import redis

from dsf.results import intake
from dsf.results.ingest import Ingest
from dsf.results.intake import Batch, MailboxContents
from dsf.tasks.ingest import ingest


class ScriptedIngest:
    """Replaces an Ingest by results as Redis gives them; records refused frames."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.refused_reasons: list[str] = []

    def ingest_frames(self, frames: list[object]) -> list[Any]:
        assert len(frames) == len(self.answers)
        return self.answers

    def count_rejection(self, reason: str) -> None:
        self.refused_reasons.append(reason)


def test_permanently_refused_result_is_dropped_and_the_rest_waits() -> None:
    hopeless, passing = redis.ResponseError("WRONGTYPE of the key"), redis.ResponseError("MISCONF the disk is full")
    ingest = ScriptedIngest("ok", hopeless, passing, "ok")
    waiting = MailboxContents([b"slot"] * 4, [b"{}"] * 4, False)
    batch = Batch(waiting, cast("Ingest", ingest))
    with pytest.raises(redis.ResponseError, match="MISCONF"):
        batch.ingest_mailboxes()
    assert (batch.finished_indexes, ingest.refused_reasons) == ([0, 1, 3], ["malformed"])


def test_results_that_are_parsed_together_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of parsed results take many times the memory of their text."""
    monkeypatch.setattr(intake, "_PARSED_BYTES", 1000)
    parts: list[list[int]] = []

    class MeasuringIngest(ScriptedIngest):
        def ingest_frames(self, frames: list[Any]) -> list[Any]:
            parts.append([len(frame) for frame in frames])
            return ["ok"] * len(frames)

    texts = [b"x" * size for size in (400, 400, 400, 5000, 10, 990, 10)]
    batch = Batch(MailboxContents([b"slot"] * len(texts), texts, False), cast("Ingest", MeasuringIngest()))
    assert batch.ingest_mailboxes() == "ok 7"
    assert parts == [[400, 400], [400], [5000], [10, 990], [10]]


@pytest.mark.parametrize("batch", [None, {}, [{"cluster": "c1"}], "text"])
def test_no_message_brings_results(batch: object) -> None:
    with pytest.raises(TypeError, match="a message cannot contain any"):
        ingest.run(batch)
