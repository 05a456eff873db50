"""No document from outside makes its reader use much memory."""

from __future__ import annotations

import pytest

from tests.support.hostile import measure_growth

_MB = 1_000_000
_RESULT = '"scorer":"s","run":"1800000000000-00000000","at":1,"outcome":"ok"'


#: Reader, document with holes, bytes of a value in a hole, and megabytes that the reader may take.
_CASES = [
    ("unsigned_result", '{"body":@HOLE@}', 6 * _MB, 5),
    (
        "result",
        f'{{{_RESULT},"results":@HOLE@,"refused":@HOLE@,"timings":@HOLE@,"counts":@HOLE@,"message":@HOLE@,"x":@HOLE@}}',
        1_900_000,
        40,
    ),
    ("result", f'{{{_RESULT},"results":[@HOLE@]}}', 1_900_000, 40),
    ("later_result", '{"version":@HOLE@,"x":@HOLE@}', 1_900_000, 40),
    ("remote_config", '{"source":@HOLE@,"sources":@HOLE@,"scoring":{"params":@HOLE@},"x":@HOLE@}', _MB, 20),
    ("remote_config", '{"sources":[@HOLE@]}', _MB, 20),
    ("scoring_response", '{"results":@HOLE@,"x":@HOLE@}', 8 * _MB, 100),
    ("scoring_response", '{"results":[{"score":1,"metric":@HOLE@},@HOLE@]}', 8 * _MB, 100),
    ("scoring_request", '{"data":@HOLE@,"x":@HOLE@}', 16 * _MB, 180),
    ("scoring_request", '{"data":[{"metric":@HOLE@,"values":@HOLE@}]}', 16 * _MB, 130),
    ("scoring_request_of_sources", '{"data":[],"sources":{"load":@HOLE@,@HOLE@:[]}}', 4 * _MB, 80),
    (
        "matrix",
        '{"status":"success","data":{"resultType":"matrix","result":[@HOLE@]},"warnings":@HOLE@}',
        4 * _MB,
        60,
    ),
    ("matrix", '{"status":"error","error":@HOLE@}', 60_000, 10),
    ("scrape", "@HOLE@", 8 * _MB, 120),
    ("pushed", '{"resourceMetrics":[{"scopeMetrics":[{"metrics":@HOLE@}]}]}', 4 * _MB, 250),
    ("pushed_protobuf", "@HOLE@", 4 * _MB, 100),
    ("recording", '{"cluster":"c","at":1,"outcome":"ok","items":@HOLE@}', 4 * _MB, 100),
    ("recording", '{"question":@HOLE@}', 4 * _MB, 120),
    ("manifests", '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":@HOLE@}', 300_000, 150),
    (
        "plan_request",
        '{"namespace":"a","clusters":@HOLE@,"targetWorkloads":@HOLE@,"preferences":@HOLE@}',
        4 * _MB,
        150,
    ),
    ("plan_request", '{"namespace":"a","clusters":[{"name":"a","availablePolicies":@HOLE@}]}', 4 * _MB, 150),
    ("assistant", '{"jsonrpc":"2.0","id":@HOLE@,"method":@HOLE@,"params":@HOLE@,"x":@HOLE@}', 4 * _MB, 150),
    (
        "assistant",
        '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":@HOLE@,"arguments":@HOLE@,"_meta":@HOLE@}}',
        4 * _MB,
        150,
    ),
    (
        "assistant",
        '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"list_scores","arguments":{"score":@HOLE@}}}',
        4 * _MB,
        150,
    ),
    ("assistant", "@HOLE@", 20 * _MB, 60),
    ("page_form", "token=@HOLE@&@HOLE@=1", 30_000, 5),
    ("page_form", "token=@HOLE@", 8 * _MB, 5),
    ("control_reply", '{"ticket":"t","reply":@HOLE@}', _MB, 20),
    ("event", '{"body":@HOLE@,"properties":@HOLE@}', 64_000, 10),
    ("token", '{"access_token":@HOLE@,"expires_in":@HOLE@}', 64_000, 10),
]


#: Values that fill the largest scoring request.
_LARGEST = ["series of short labels", "series of many labels", "series of wide labels", "a wide text"]


@pytest.mark.parametrize(("reader", "template", "size", "limit"), _CASES)
def test_memory_of_a_reader_is_bounded(reader: str, template: str, size: int, limit: int) -> None:
    grown = measure_growth(f"tests.integration.hostile.readers:{reader}", template, size)
    assert grown
    assert {label: megabytes for label, megabytes in grown.items() if megabytes > limit} == {}


def test_memory_of_the_largest_scoring_request_is_bounded() -> None:
    reader = "tests.integration.hostile.readers:scoring_request"
    grown = measure_growth(reader, '{"data":@HOLE@}', 68 * _MB, _LARGEST)
    assert len(grown) == 2 * len(_LARGEST)
    # The pods of the samples have 512Mi, and the body itself takes 68 MB of them.
    assert {label: megabytes for label, megabytes in grown.items() if megabytes > 340} == {}
