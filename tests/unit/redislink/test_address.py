"""URLs of Redis, right and wrong."""

from __future__ import annotations

import pytest

from dsf.errors import SettingsError
from dsf.redislink.address import Address, parse


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost", Address("redis", (("localhost", 6379),))),
        ("redis://localhost:7000/2", Address("redis", (("localhost", 7000),), 2)),
        ("redis://:pw@h", Address("redis", (("h", 6379),), password="pw")),
        ("rediss://u:p%2Fw%40@h:6380/0", Address("rediss", (("h", 6380),), 0, "u", "p/w@")),
        ("rediss://[2001:db8::1]:6380", Address("rediss", (("2001:db8::1", 6380),))),
        ("sentinel://a;sentinel://b:2/1", Address("sentinel", (("a", 26379), ("b", 2)), 1)),
        ("sentinel://u:p@a:1,b:2,c:3/0", Address("sentinel", (("a", 1), ("b", 2), ("c", 3)), 0, "u", "p")),
        (" redis://h/ \n", Address("redis", (("h", 6379),))),
        ("valkey://:pw@h/1", Address("redis", (("h", 6379),), 1, password="pw")),
        ("valkeys://h", Address("rediss", (("h", 6379),))),
    ],
)
def test_right_ones(url: str, expected: Address) -> None:
    assert parse(url) == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "empty"),
        ("localhost:6379", "not a scheme"),
        ("http://secret:secret@h", "not a scheme"),
        *(
            (f"{scheme}:///run/secret.sock", "a Unix socket reaches")
            for scheme in ("unix", "redis+socket", "valkey+socket")
        ),
        ("unix://user:secret@/run/redis.sock?db=1", "give it a port"),
        ("redis://h;rediss://g", "not a scheme for Redis, or several"),
        ("redis://a;redis://b", "sentinel:// only"),
        ("redis://u:se/cret@h:6379/0", "percent-encoded"),
        ("redis://h:99999", "not a port"),
        ("redis://h/secret", "number of a database"),
        ("rediss://h?ssl_cert_reqs=none", "options after"),
        ("redis://[::1", "not a URL"),
        ("redis://user:secret#secret@h:6379/0", "percent-encoded"),
        ("redis://:12#secret@h", "percent-encoded"),
        ("redis://h:6379/0#secret", "percent-encoded"),
    ],
)
def test_wrong_ones_are_not_repeated(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        parse(url)
    assert "DSF_REDIS_URL" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "cret@" not in str(caught.value)


def test_it_can_be_shown() -> None:
    address = parse("sentinel://u:secret@a:1;sentinel://[::1]:2/3")
    assert str(address) == "sentinel://a:1/3;sentinel://[::1]:2/3"
    assert "secret" not in repr(address)
