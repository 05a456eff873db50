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
        ("unix:///run/Redis.sock", Address("unix", (("/run/Redis.sock", 0),))),
        ("unix://u:p%40@/run/a%2Cb.sock?db=1", Address("unix", (("/run/a,b.sock", 0),), 1, "u", "p@")),
        ("redis+socket:///run/redis.sock?virtual_host=2", Address("unix", (("/run/redis.sock", 0),), 2)),
        ("valkey+socket://:p@/run/redis.sock", Address("unix", (("/run/redis.sock", 0),), 0, password="p")),
    ],
)
def test_valid_urls_are_accepted(url: str, expected: Address) -> None:
    assert parse(url) == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "empty"),
        ("localhost:6379", "not a scheme"),
        ("http://secret:secret@h", "not a scheme"),
        ("unix://run/secret.sock", "has three slashes"),
        ("unix://user:secret@run/redis.sock", "has three slashes"),
        ("redis+socket://", "has three slashes"),
        ("unix:///run/redis.sock?db=secret", "number of a database"),
        ("unix:///run/redis.sock?password=secret", "options after"),
        ("unix:///run/redis.sock?db=1&db=2", "options after"),
        ("unix:///run/redis.sock?db=0#secret", "percent-encoded"),
        ("unix:///run/a.sock;unix:///run/b.sock", "sentinel:// only"),
        ("redis://h;rediss://g", "not a scheme for Redis, or several"),
        ("redis://a;redis://b", "sentinel:// only"),
        ("redis://u:se/cret@h:6379/0", "percent-encoded"),
        ("redis://:se,cret@h", "percent-encoded"),
        ("redis://:se;cret@h", "percent-encoded"),
        ("redis://h:99999", "not a port"),
        ("redis://h/secret", "number of a database"),
        ("rediss://h?ssl_cert_reqs=none", "options after"),
        ("redis://[::1", "not a URL"),
        ("redis://user:secret#secret@h:6379/0", "percent-encoded"),
        ("redis://:12#secret@h", "percent-encoded"),
        ("redis://h:6379/0#secret", "percent-encoded"),
    ],
)
def test_error_of_an_invalid_url_does_not_repeat_it(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        parse(url)
    assert "DSF_REDIS_URL" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "cret@" not in str(caught.value)


@pytest.mark.parametrize("url", ["unix:///run/Redis.sock?db=2", "unix:///run/a%2Cb%3Bc%23%3F.sock?db=0"])
def test_displayed_socket_url_is_parsed_unchanged(url: str) -> None:
    assert str(parse(url)) == url


def test_address_is_displayed_without_its_password() -> None:
    address = parse("sentinel://u:secret@a:1;sentinel://[::1]:2/3")
    assert str(address) == "sentinel://a:1/3;sentinel://[::1]:2/3"
    assert "secret" not in repr(address)
