"""Source types of third parties: loading, the context of a plug-in, and errors."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import field_validator

from dsf import http
from dsf.api.summary import ScorerSummary
from dsf.api.types import SourceType
from dsf.errors import HttpError
from dsf.http.access import PLAIN, Access
from dsf.sources import FetchContext, find_source, registry
from dsf.sources.base import OTLP, PLUGIN_BY_BUILTIN_TYPE, RequestRecord
from dsf.sources.plugin import Options, Plugin, Request, Series, SourceError, query_plugin
from tests.support.plugins import forget, install, install_sample

CSV = "csv.example.com"
BODY = b"time,value,node\n1020,1,n1\n1080,2.5,n1\n1080,nan,n2\n1140,3,n1\n"
GOOD = "from dsf.sources.plugin import Options, Plugin\nit = Plugin(1, Options, lambda request: ())\n"
#: Modules are loaded once for each name.
NAMES = (f"dsf_test_plugin_{number:03}" for number in itertools.count())

Install = Callable[..., str]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`package(module, entry="csv.example.com")` installs a module with the plug-in `it` and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    names = []

    def make(module: str, entry: str = CSV) -> str:
        names.append(name := next(NAMES))
        install(tmp_path, name, {entry: f"{name}:it"}, module)
        forget()
        return name

    yield make
    for name in names:
        sys.modules.pop(name, None)
    forget()


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package in samples/csv-source."""
    monkeypatch.syspath_prepend(str(tmp_path))
    install_sample(tmp_path)
    forget()
    yield
    sys.modules.pop("dsf_csv_source", None)
    forget()


def summary(kind: str = CSV, options: dict[str, Any] | None = None, span: int = 0) -> ScorerSummary:
    return ScorerSummary(
        name="s",
        score_name="s",
        source_type=kind,
        source_endpoint="http://files.example:8080/power.csv",
        source_query="q",
        source_range=span,
        source_step=60,
        source_options=options,
    )


def context(
    access: Access = PLAIN, *, max_bytes: int = 10_000, questions: list[RequestRecord] | None = None
) -> FetchContext:
    observe = (lambda _: None) if questions is None else questions.append
    return FetchContext(time.monotonic() + 60, max_bytes, 1140.7, access, observe=observe)


def data(source_summary: ScorerSummary, with_: FetchContext) -> Any:
    payload = find_source(source_summary.source_type)(source_summary, with_)
    document = json.loads(b"".join(payload.pieces))
    assert len(document["data"]) == payload.series
    return document["data"]


def serve(monkeypatch: pytest.MonkeyPatch, body: bytes) -> list[dict[str, Any]]:
    """Answer every request with `body` and return the list of requests."""
    requests: list[dict[str, Any]] = []

    def get(url: str, **way: Any) -> bytes:
        way.pop("sink")(body)
        requests.append({"url": url, **way})
        return b""

    monkeypatch.setattr(http, "get", get)
    return requests


def refusal(kind: str = CSV) -> tuple[str, str]:
    with pytest.raises(HttpError) as caught:
        find_source(kind)
    return caught.value.reason, str(caught.value)


@pytest.mark.usefixtures("sample")
def test_sample_plugin_reads_csv(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = serve(monkeypatch, BODY)
    questions: list[RequestRecord] = []
    assert data(summary(span=60), context(questions=questions)) == [
        {"metric": {"node": "n1"}, "values": [[1080, "2.5"], [1140, "3"]]},
        {"metric": {"node": "n2"}, "values": [[1080, "NaN"]]},
    ]
    assert data(summary(), context())[0] == {"metric": {"node": "n1"}, "values": [[1140, "3"]]}
    assert [request["url"] for request in requests] == ["http://files.example:8080/power.csv"] * 2
    (question,) = questions
    assert (question.query, question.received, question.series) == ("q", len(BODY), 2)
    assert b"".join(question.pieces).startswith(b'{"metric":{"node":"n1"}')


@pytest.mark.usefixtures("sample")
def test_sample_plugin_uses_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, b"at;watts\n1000;7\n")
    options = {"timeColumn": "at", "valueColumn": "watts", "delimiter": ";"}
    assert data(summary(options=options), context()) == [{"metric": {}, "values": [[1000, "7"]]}]


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"at,value\n", "the first line has no column time"),
        (b"", "the first line has no column time and no column value"),
        (b"time,value,node\n1,2\n", "line 2: it has not as many fields as the first line"),
        (b"time,value\n1,2,3\n", "line 2: it has not as many fields as the first line"),
        (b"time,value\n1,2\n1,high\n", "line 3: time and value must be numbers"),
        (b"time,value\n\xff,1\n", "the response is no CSV in UTF-8: UnicodeDecodeError"),
    ],
)
def test_sample_plugin_reports_a_bad_answer(monkeypatch: pytest.MonkeyPatch, body: bytes, problem: str) -> None:
    serve(monkeypatch, body)
    with pytest.raises(HttpError) as caught:
        data(summary(), context())
    assert (caught.value.reason, str(caught.value)) == ("bad_answer", problem)


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"delimeter": ";"},
            "options.delimeter: is not a known field; allowed are timeColumn, valueColumn, delimiter; ",
        ),
        ({"delimeter": ";"}, "did you mean delimiter?"),
        ({"delimiter": ";;"}, "options.delimiter: is longer than 1 characters"),
        ({"timeColumn": 5}, "options.timeColumn: 5 is not text"),
        ({"time_column": "t"}, "options.time_column: is not a known field"),
    ],
)
def test_unknown_options_of_a_plugin_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(HttpError) as caught:
        data(summary(options=options), context())
    assert caught.value.reason == "bad_options"
    assert str(caught.value).startswith(f"source type {CSV!r} (dsf_csv_source 1.0, dsf_csv_source:CSV): options.")
    assert problem in str(caught.value)


def test_unknown_source_type_is_refused_with_the_known_ones(package: Install) -> None:
    package(GOOD, "other.example.com")
    reason, message = refusal("nobody.example.com")
    assert reason == "unsupported_source"
    assert message == (
        "source type 'nobody.example.com' is not one of Prometheus, OpenTelemetry, Kubernetes, Object, Scores, None, "
        "other.example.com; install the package that has it in the agent's image (an entry point 'dsf.sources')"
    )
    assert refusal("Carbon")[1].endswith("None, other.example.com")


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (
            "import nothing_of_this_name",
            "cannot be loaded: ModuleNotFoundError: No module named 'nothing_of_this_name'",
        ),
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        ("that = 1", "cannot be loaded: AttributeError: "),
        ("def it(request): return []", "is no dsf.sources.plugin.Plugin"),
        (GOOD.replace("Options, lambda", "dict, lambda"), "with a model of options made from its class Options"),
        (GOOD.replace("1, Options", "2, Options"), "is for version 2 of the plug-ins' protocol and this agent has 1"),
    ],
)
def test_broken_plugin_reports_its_cause_each_time(package: Install, module: str, problem: str) -> None:
    name = package(module)
    for _ in range(2):
        reason, message = refusal()
        assert reason == "plugin_failed"
        assert message.startswith(f"source type {CSV!r}: {name} 1.0, {name}:it ")
        assert problem in message
    # Other plug-ins still load.
    assert callable(find_source(SourceType.Prometheus))


def test_two_packages_of_one_type_are_both_refused(package: Install) -> None:
    first, second = package(GOOD), package(GOOD)
    reason, message = refusal()
    assert reason == "plugin_failed"
    assert message.endswith(
        f"several packages have it: {first} 1.0, {first}:it, {second} 1.0, {second}:it; uninstall all but one"
    )
    assert first not in sys.modules


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Prometheus", "it is the name of a built-in type"),
        ("None", "built-in"),
        ("csv", "with a dot"),
        ("A.b", "DNS name"),
    ],
)
def test_invalid_plugin_name_is_never_used(
    package: Install, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    errors: list[dict[str, Any]] = []
    monkeypatch.setattr(registry.log, "error", lambda _, **values: errors.append(values))
    module = package("raise SystemExit", name)
    assert set(registry.find_plugins()) == {OTLP, *PLUGIN_BY_BUILTIN_TYPE.values()}
    assert (errors[0]["name"], errors[0]["package"]) == (name, f"{module} 1.0, {module}:it")
    assert why in errors[0]["why"]
    if name in set(SourceType):
        assert find_source(name).__module__.startswith("dsf.sources.")
    else:
        assert refusal(name)[0] == "unsupported_source"
    assert module not in sys.modules


def run_plugin(fetch: Callable[[Request[Options]], Any], with_: FetchContext, **values: Any) -> Any:
    payload = query_plugin(Plugin(1, Options, fetch), "mine", summary(**values), with_)
    return json.loads(b"".join(payload.pieces))["data"]


def test_plugin_receives_the_request_of_the_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[dict[str, Any]] = []

    def post(url: str, body: bytes, **way: Any) -> bytes:
        way.pop("sink")(b"12345")
        posted.append({"url": url, "body": body, **way})
        return b""

    monkeypatch.setattr(http, "post", post)
    access, questions = Access(secrets=("canary",)), list[RequestRecord]()
    with_ = context(access, questions=questions)

    def fetch(request: Request[Options]) -> Iterator[Series]:
        assert (request.query, request.start, request.end, request.step) == ("q", 1080, 1140, 60)
        request.post(b"{}", "/search?x=1", content_type="application/x", accept="text/csv")
        request.get()
        yield Series({"a": "é\n"}, [(request.start + 0.5, 1), (request.end, float("-inf"))])
        yield Series({"empty": "yes"}, [])

    requests = serve(monkeypatch, b"123")
    expected = [{"metric": {"a": "é\n"}, "values": [[1080.5, "1"], [1140, "-Inf"]]}]
    assert run_plugin(fetch, with_, span=60) == expected
    way = {"access": access, "deadline": with_.deadline}
    assert posted == [
        {
            "url": "http://files.example:8080/search?x=1",
            "body": b"{}",
            "content_type": "application/x",
            "accept": "text/csv",
            **way,
            "max_bytes": 10_000,
        }
    ]
    # The limit applies to the sum of all responses.
    assert requests == [
        {"url": "http://files.example:8080/power.csv", "params": None, "accept": None, **way, "max_bytes": 9_995}
    ]
    assert [(question.method, question.received, question.series) for question in questions] == [
        ("POST", 5, 0),
        ("GET", 3, 1),
    ]


@pytest.mark.parametrize("path", ["//evil.example/x", "/@evil.example/", "/\\evil.example", "/..//evil.example"])
def test_no_path_leads_to_another_server(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    requests = serve(monkeypatch, b"")
    run_plugin(lambda request: [Series({}, [(1, len(request.get(path)))])], context())
    assert requests[0]["url"].startswith("http://files.example:8080/")


@pytest.mark.parametrize("path", ["http://evil.example/x", "@evil.example", ".evil.example", ":1/", ""])
def test_invalid_request_path_is_refused(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    requests = serve(monkeypatch, b"")
    with pytest.raises(HttpError, match="does not begin with /"):
        run_plugin(lambda request: [Series({}, [(1, len(request.get(path)))])], context())
    assert requests == []


def make_failing_plugin(error: BaseException) -> Callable[[Request[Options]], Any]:
    def fetch(request: Request[Options]) -> Any:
        raise error

    return fetch


@pytest.mark.parametrize(
    ("fetch", "reason", "problem"),
    [
        (make_failing_plugin(SourceError("no such index")), "bad_answer", "no such index"),
        (make_failing_plugin(SourceError("no such field", is_query=True)), "bad_query", "no such field"),
        (make_failing_plugin(HttpError("timeout", "late", retryable=True)), "timeout", "late"),
        (make_failing_plugin(KeyError("x")), "plugin_failed", "mine: KeyError in test_plugins.py:"),
        (make_failing_plugin(ValueError("got canary-1!")), "plugin_failed", ": got ***!"),
        (make_failing_plugin(SystemExit(3)), "plugin_failed", "mine: SystemExit in test_plugins.py:"),
        (make_failing_plugin(asyncio.CancelledError()), "plugin_failed", "mine: CancelledError in test_plugins.py:"),
        (lambda _: None, "plugin_failed", "TypeError"),
        (lambda _: [("a", 1)], "plugin_failed", "AttributeError"),
        (lambda _: [Series({"a": 1}, [(1, 1)])], "plugin_failed", "the labels {'a': 1} are not all texts"),
        (lambda _: [Series({"a": "\ud800"}, [(1, 1)])], "plugin_failed", "UnicodeEncodeError"),
        (lambda _: [Series({}, [(float("nan"), 1)])], "plugin_failed", "nan is the time of a sample"),
        (lambda _: [Series({}, [(1, "high")])], "plugin_failed", "ValueError"),
        (lambda _: [Series({}, [(time, 1) for time in range(2000)])], "too_large", "more than the 10000 bytes"),
        (lambda _: [Series({"a": "x" * 9_990}, [(1, 1)])], "too_large", "more than the 10000 bytes"),
        (lambda _: (Series({"a": str(n)}, [(1, 1)]) for n in itertools.count()), "too_large", "10000 bytes"),
    ],
)
def test_every_failure_of_a_plugin_has_a_reason(fetch: Any, reason: str, problem: str) -> None:
    with pytest.raises(HttpError) as caught:
        run_plugin(fetch, context(Access(secrets=("canary-1",))))
    assert caught.value.reason == reason
    assert problem in str(caught.value)
    assert caught.value.retryable is (reason == "timeout")


@pytest.mark.parametrize("error", [KeyError("canary-1"), SystemExit(3)])
def test_failing_check_of_options_is_reported_as_fault_of_the_plugin(error: BaseException) -> None:
    class Checked(Options):
        depth: int

        @field_validator("depth")
        @classmethod
        def _check(cls, _: int) -> int:
            raise error

    plugin = Plugin(1, Checked, lambda _: [])
    with pytest.raises(HttpError) as caught:
        query_plugin(plugin, "mine", summary(options={"depth": 1}), context(Access(secrets=("canary-1",))))
    assert caught.value.reason == "plugin_failed"
    assert str(caught.value).startswith(f"mine: {type(error).__name__} in test_plugins.py:")
    assert "canary" not in str(caught.value)


def test_work_without_end_ends_with_the_deadline() -> None:
    late = FetchContext(time.monotonic() - 1, 1000, 1120.0)

    def fetch(request: Request[Options]) -> Iterator[Series]:
        while True:
            request.check()
            yield Series({}, [])

    for endless in (fetch, lambda _: (Series({}, []) for _ in itertools.count())):
        with pytest.raises(HttpError) as caught:
            run_plugin(endless, late)
        assert caught.value.reason == "timeout"


def test_plugin_may_answer_without_a_request() -> None:
    questions: list[RequestRecord] = []
    assert run_plugin(lambda _: [Series({}, [(1, 2)])], context(questions=questions)) == [
        {"metric": {}, "values": [[1, "2"]]}
    ]
    assert [(question.url, question.series) for question in questions] == [
        ("what the plug-in knows without a request", 1)
    ]
