"""Addresses that never get a request."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dsf.errors import HttpError
from dsf.http import addresses
from dsf.http.addresses import is_link_local_or_metadata
from dsf.http.deadline import Exchange


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("169.254.169.254", True),
        ("::ffff:169.254.169.254", True),
        ("64:ff9b::169.254.169.254", True),
        ("2002:a9fe:a9fe::1", True),
        ("::169.254.169.254", True),
        ("fe80::1", True),
        ("fe80::1%eth0", True),
        ("::ffff:0:169.254.169.254", True),
        ("64:ff9b:1::169.254.169.254", True),
        # Site prefixes with 96, 48, 56 and 64 bits.
        ("64:ff9b:1:1::a9fe:a9fe", True),
        ("64:ff9b:1:a9fe:a9:fe00::", True),
        ("64:ff9b:1:1a9:fe:a9fe::", True),
        ("64:ff9b:1:1:a9:fea9:fe00:0", True),
        ("64:ff9b:1:1::6464:64c8", True),
        ("fd00:ec2::254", True),
        ("fd00:ec2::23", True),
        ("fd00:42::42", True),
        ("fd00:a9fe:a9fe::1", True),
        ("100.100.100.200", True),
        ("168.63.129.16", True),
        ("169.253.0.1", False),
        ("127.0.0.1", False),
        ("10.0.0.1", False),
        ("::1", False),
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b:1::10.0.0.1", False),
        ("64:ff9b:1:1::a00:1", False),
        ("64:ff9b:1:a00:0:100::", False),
        ("64:ff9b:1:10a:0:1::", False),
        ("64:ff9b:1:1:a:0:100:0", False),
        ("64:ff9b:2:1::a9fe:a9fe", False),
        ("fd00::1", False),
    ],
)
def test_link_local_and_metadata_addresses_are_refused(address: str, expected: bool) -> None:
    assert is_link_local_or_metadata(address) is expected


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let all name look-ups hang; literal addresses need none."""
    real_getaddrinfo, over = socket.getaddrinfo, threading.Event()

    def look_up(host: str, *rest: Any, **keywords: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return real_getaddrinfo(host, *rest, **keywords)
        over.wait(20)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield
    over.set()


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "2852039166", "0xa9fea9fe.", "0251.0376.0251.0376", "169.254.169%2e254"),
        *("metadata", "instance-data", "METADATA.", "instance-data.ec2.internal", "metadata%2Egoogle.internal"),
        "[64:ff9b:1:1::a9fe:a9fe]",
    ],
)
def test_metadata_host_is_refused_despite_a_silent_name_server(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr(addresses, "CONNECT_TIMEOUT", 0.05)
    with pytest.raises(HttpError) as caught:
        addresses.check_proxied_url(f"http://{host}/latest/meta-data", Exchange(time.monotonic() + 60, 100))
    assert caught.value.reason == "address_refused"


@pytest.mark.usefixtures("silent")
def test_unresolved_name_is_left_to_the_proxy_within_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "CONNECT_TIMEOUT", 0.05)
    addresses.check_proxied_url("http://names.test/", Exchange(time.monotonic() + 60, 100))
    with pytest.raises(TimeoutError):
        addresses.check_proxied_url("http://names.test/", Exchange(time.monotonic() + 0.02, 100))
