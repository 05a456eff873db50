"""The path of one result from the agent's publish stage into the books: how often it is encoded, decoded and stored."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import BaseModel

from dsf.agent.outbox import Outbox, SigningKeyFile
from dsf.messages import Result, derive_key
from dsf.results.intake import Intake
from dsf.tasks.ingest import ingest
from tests.integration.results.bed import SECRET, ResultsHarness
from tests.support.fixtures import SettingsFactory

#: A label of the result, which appears in all of its encodings.
MARK = "node-of-this-result"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Texts with the mark that this process has encoded and decoded: `encoded` and `decoded`."""
    counts: Counter[str] = Counter()

    def counting(original: Any, operation: str) -> Any:
        def wrapped(*args: Any, **options: Any) -> Any:
            encoded = original(*args, **options)
            texts = [encoded] if operation == "encoded" else args
            counts[operation] += any(MARK in str(text) for text in texts)
            return encoded

        return wrapped

    monkeypatch.setattr(json, "dumps", counting(json.dumps, "encoded"))
    monkeypatch.setattr(json, "loads", counting(json.loads, "decoded"))
    monkeypatch.setattr(BaseModel, "model_dump_json", counting(BaseModel.model_dump_json, "encoded"))
    validate = BaseModel.model_validate_json.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(BaseModel, "model_validate_json", classmethod(counting(validate, "decoded")))
    return counts


def test_result_is_encoded_twice_decoded_once_and_stored_twice(
    bed: ResultsHarness,
    redis_client: redis.Redis,
    redis_url: str,
    settings_factory: SettingsFactory,
    counted: Counter[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = derive_key(bytes.fromhex(SECRET), "c1", 1)
    file = tmp_path / "key"
    file.write_text(key.dump())
    agent = settings_factory(role="agent", cluster="c1", signing_key_file=file)
    with redis.Redis.from_url(redis_url) as raw:
        outbox = Outbox(redis_client, SigningKeyFile(agent), "c1", 10_000, namespaces=dict)
        intake = Intake(raw, bed.ingest, ingest, threading.Event())

        def cycle(label: str) -> None:
            bed.now += 30
            result = Result(cluster="c1", scorer="s1", run=bed.open(), at=bed.now, outcome="ok")
            result.results = [({"node": label}, 5.0)]
            outbox.send(result, time.monotonic() + 60)
            intake.run_pass()

        # The first one also loads scripts and the registry.
        cycle("first")
        with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
            cycle(MARK)
            redis_client.echo("the end")
            commands = []
            for entry in monitor.listen():
                if entry["command"].startswith("ECHO"):
                    break
                commands.append((entry["client_type"] == "lua", entry["command"]))
    assert bed.pairs.read_state("c1", "s1").count("ok") == 2
    # Encoded: the payload and the score. Decoded: the payload.
    assert (counted["encoded"], counted["decoded"]) == (2, 1)
    # The first command writes the slot of the mailbox, the second one the pair.
    stored_commands = [
        text.split()[:2] for _, text in commands if MARK in text and text.split()[0] in ("SET", "HSET", "LPUSH")
    ]
    assert sorted(stored_commands) == [["HSET", "dsf:pair:c1/s1"], ["SET", "hub.mail.c1.0"]]
    # The agent puts it into a slot and sets the flag, in one round trip. The hub reads slots, asks for the cluster, the
    # scorer, overrides of the interval and the factor of validities, in one round trip, closes the run and empties the
    # slot. An additional script opens the run, as beat's would.
    command_counts = Counter(text.split()[0] for is_inside, text in commands if not is_inside)
    # A new connection begins with HELLO, and with CLIENT SETINFO where the server knows it.
    del command_counts["HELLO"], command_counts["CLIENT"]
    assert command_counts == {"SET": 2, "EVALSHA": 4, "HMGET": 3, "HGET": 1}
