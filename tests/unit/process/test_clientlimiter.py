"""The limit of concurrent requests, which clients share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsf.errors import BackendError
from dsf.process.clientlimiter import ClientLimiter, find_client
from tests.support.wait import wait_for


def test_greedy_client_leaves_requests_for_others() -> None:
    limiter = ClientLimiter(max_running=4, max_running_per_client=2, max_requests=10, seconds=60.0)
    go_on = threading.Event()
    inside: list[str] = []

    def work(client: str) -> None:
        with limiter.limit(client):
            inside.append(client)
            assert go_on.wait(30)

    with ThreadPoolExecutor(20) as pool:
        futures = [pool.submit(work, "greedy") for _ in range(10)]
        wait_for(lambda: len(inside) == 2, 30)
        with pytest.raises(BackendError, match="by one client"), limiter.limit("greedy"):
            pass
        futures += [pool.submit(work, "a"), pool.submit(work, "b")]
        wait_for(lambda: len(inside) == 4, 30)
        assert sorted(inside) == ["a", "b", "greedy", "greedy"]
        go_on.set()
        for future in futures:
            future.result(30)
    assert inside.count("greedy") == 10


def test_request_that_may_not_run_in_time_is_an_error() -> None:
    limiter = ClientLimiter(max_running=1, max_running_per_client=1, max_requests=10, seconds=0.01)
    with limiter.limit("a"), pytest.raises(BackendError, match="too much at a time"), limiter.limit("b"):
        pass
    with limiter.limit("b"):
        pass


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_addresses_of_one_network_are_one_client(address: str, client: str) -> None:
    assert find_client(address) == client
