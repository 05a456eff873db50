from __future__ import annotations

import json
from typing import Any

import pytest

from dsf.api.remoteconfig import RemoteConfig, parse_remote_config
from dsf.api.types import SourceType
from dsf.errors import RemoteConfigError
from tests.unit.api.factories import QUERY, SYNCED, merged


def parse(document: Any) -> RemoteConfig:
    return parse_remote_config(json.dumps(document).encode())


def test_complete_config_is_parsed() -> None:
    config = parse(SYNCED)
    assert config.source.type is SourceType.Prometheus
    assert config.source.params.query == QUERY
    assert config.scoring.params.interval == 30
    assert config.to_manifest() == merged(SYNCED, {"scoring.host": ""})


@pytest.mark.parametrize("document", [{}, {"detail": "Not Found"}, {"error": {"name": "x"}, "status": 404}])
def test_response_without_known_fields_is_no_configuration(document: dict[str, object]) -> None:
    with pytest.raises(RemoteConfigError, match="is no configuration: it has none of name, description, source, so"):
        parse_remote_config(json.dumps(document).encode())


@pytest.mark.parametrize("document", [{"name": ""}, {"source": None, "scoring": {"params": None, "path": None}}])
def test_absent_or_null_fields_are_unset(document: dict[str, Any]) -> None:
    assert parse(document) == RemoteConfig()


def test_byte_order_mark_is_accepted() -> None:
    assert parse_remote_config(b'\xef\xbb\xbf{"name": null}') == RemoteConfig()


@pytest.mark.parametrize(
    ("type_text", "expected"),
    [
        ("Prometheus", SourceType.Prometheus),
        ("prometheus", SourceType.Prometheus),
        ("NONE", SourceType.None_),
        ("opentelemetry", SourceType.OpenTelemetry),
        ("", None),
        (None, None),
    ],
)
def test_source_type_ignores_letter_case(type_text: str | None, expected: SourceType | None) -> None:
    assert parse({"source": {"type": type_text}}).source.type is expected


def test_unknown_keys_are_ignored() -> None:
    assert parse({**SYNCED, "x": 1, "source": {**SYNCED["source"], "auth": {"y": 2}}}) == parse(SYNCED)


def test_numbers_below_one_are_not_changed() -> None:
    assert parse({"scoring": {"params": {"interval": -1}}}).scoring.params.interval == -1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<h1>", "the /config response is not JSON (expected value at line 1 column 1); it starts with '<h1>'"),
        (b"[]", "the /config response is not a JSON object; it starts with '[]'"),
        (b"null", "the /config response is not a JSON object; it starts with 'null'"),
        (
            b"[" * 100_000,
            "the /config response is no configuration: it has more than 10000 values; it starts with '"
            + "[" * 120
            + "'...",
        ),
        (
            b'{"source": {"type": "prom"}}',
            (
                "the /config response has mistakes: source.type: 'prom' is not one of Prometheus, OpenTelemetry, "
                "Kubernetes, Object, Scores, None; that of a plug-in has a dot, as csv.example.com"
            ),
        ),
        (
            b'{"source": {"type": 5}}',
            (
                "the /config response has mistakes: source.type: 5 is not one of Prometheus, OpenTelemetry, "
                "Kubernetes, Object, Scores, None; that of a plug-in has a dot, as csv.example.com"
            ),
        ),
        (
            b'{"source": {"params": {"range": "1h"}}, "scoring": {"params": {"interval": 1.5, "name": 7}}}',
            (
                "the /config response has mistakes: source.params.range: '1h' is not a whole number; "
                "scoring.params.name: 7 is not text; scoring.params.interval: 1.5 is not a whole number"
            ),
        ),
        (b'{"scoring": []}', "the /config response has mistakes: scoring: [] is not a mapping of fields"),
        (
            b'{"scoring": {"params": {"interval": 99999999999}}}',
            "the /config response has mistakes: scoring.params.interval: 99999999999 is more than 2147483647",
        ),
        (
            b'{"name": "\\ud800"}',
            (
                "the /config response is not JSON (unexpected end of hex escape at line 1 column 17); "
                'it starts with \'{"name": "\\\\ud800"}\''
            ),
        ),
        (
            b'{"scoring": {"params": {"interval": 1' + b"0" * 5000 + b"}}}",
            (
                "the /config response is not JSON (number out of range at line 1 column 4338); "
                'it starts with \'{"scoring": {"params": {"interval": 1' + "0" * 83 + "'..."
            ),
        ),
    ],
)
def test_bad_config_is_refused_with_its_reason(body: bytes, message: str) -> None:
    with pytest.raises(RemoteConfigError) as raised:
        parse_remote_config(body)
    assert str(raised.value) == message
