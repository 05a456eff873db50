"""Which addresses are never asked."""

from __future__ import annotations

import pytest

from dsf.http.addresses import is_refused


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
        ("fd00::1", False),
    ],
)
def test_link_local_and_metadata_addresses_are_refused(address: str, expected: bool) -> None:
    assert is_refused(address) is expected
