"""Redis' authority is renewed or replaced: cycles go on, and only Redis restarts."""

from __future__ import annotations

from pathlib import Path

from tests.integration.security.fleet import CLUSTERS, Fleet, replace
from tests.support.tlsca import TestCa

_PROCESSES = ("controller", "beat", "results", "web", "flower", *(f"agent-{cluster}" for cluster in CLUSTERS))


def _cycles_go_on(fleet: Fleet) -> None:
    before = {cluster: fleet.state(cluster).count("ok") for cluster in CLUSTERS}
    for cluster in CLUSTERS:
        fleet.until(lambda c=cluster: fleet.state(c).count("ok") >= before[c] + 2, f"cycles of {cluster}", 60)
    assert [name for name in _PROCESSES if not fleet.process(name).is_running] == []


def test_renewed_redis_ca_is_accepted_in_any_order(fleet: Fleet) -> None:
    """The renewed CA is a different certificate with the same name and key."""
    file = fleet.redis.ca.cert
    old = file.read_text()
    fleet.redis.ca.renew()
    new = file.read_text()
    assert old != new
    # The server comes first, and no client has the new CA.
    replace(file, old)
    fleet.redis.restart(fleet.redis.ca.issue("localhost", "127.0.0.1"))
    _cycles_go_on(fleet)
    # The new CA is delivered, and all clients reconnect.
    replace(file, new)
    fleet.redis.restart()
    _cycles_go_on(fleet)


def test_new_redis_ca_is_introduced_while_both_are_trusted(fleet: Fleet, tmp_path: Path) -> None:
    file = fleet.redis.ca.cert
    old, other = file.read_text(), TestCa(tmp_path / "other", "another CA")
    both = old + other.cert.read_text()
    replace(file, both)
    fleet.redis.restart()
    _cycles_go_on(fleet)
    fleet.redis.restart(other.issue("localhost", "127.0.0.1"))
    _cycles_go_on(fleet)
    replace(file, other.cert.read_text())
    fleet.redis.restart()
    _cycles_go_on(fleet)
    # Switch back.
    replace(file, both)
    fleet.redis.restart(fleet.redis.ca.issue("localhost", "127.0.0.1"))
    replace(file, old)
    _cycles_go_on(fleet)
    for role in _PROCESSES:
        assert "the certificate of Redis" not in fleet.log(role)
