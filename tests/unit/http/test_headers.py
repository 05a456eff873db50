"""Headers of an answer are read as http.client reads them, plain or not."""

from __future__ import annotations

import http.client
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsf.http.answer import read_headers

PLAIN = b"Content-Type: application/json\r\nDate:\t Tue, 24 Nov 2026 07:00:00 GMT \r\nx-y:\r\nX-Y: \xe9\n"
_PIECES = [
    b"A",
    b"Content-Length",
    b":",
    b" ",
    b"\t",
    b"\r",
    b"\n",
    b"\r\n",
    b"7",
    b"\x00",
    b"\x85",
    b"\xff",
    b"(",
    b"From x",
]


def seen(message: http.client.HTTPMessage) -> object:
    return message.items(), message.get_payload(), [type(defect) for defect in message.defects], message.is_multipart()


@given(st.lists(st.sampled_from([*_PIECES, PLAIN]), max_size=12).map(b"".join))
@example(PLAIN)
@example(b"no header\r\n" + PLAIN)
@example(PLAIN + b" goes on\r\n")
@example(b"Content-Type: multipart/mixed\r\n")
def test_as_http_client_reads_them(text: bytes) -> None:
    whole = text + b"\r\n\r\nthe body"
    ours, theirs = io.BytesIO(whole), io.BytesIO(whole)
    assert seen(read_headers(ours)) == seen(http.client.parse_headers(theirs))
    assert ours.read() == theirs.read()


@pytest.mark.parametrize("text", [b"A: " + b"x" * 70_000, b"A: b\r\n" * 101])
def test_no_more_than_http_client_reads(text: bytes) -> None:
    with pytest.raises(http.client.HTTPException):
        read_headers(io.BytesIO(text))
