"""ai-workload-scorer: power headroom and performance by application and device."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsf.scorer import Score, ScorerError, Series, Skipped
from tests.support.uv import ROOT
from tests.unit.samples.conftest import Load

SAMPLE = "ai-workload-scorer"


def gpu(pod: str, values: list[float], *, node: str = "n1", profile: str = "", start: float = 0) -> Series:
    labels = {"Hostname": node, "exported_pod": pod, "GPU_I_PROFILE": profile}
    return Series.of({name: value for name, value in labels.items() if value}, values, start=start)


def by_key(results: Any) -> dict[str, float]:
    return {
        f"{result.labels['app']};{result.labels['device']}": result.value
        for result in results
        if isinstance(result, Score)
    }


def reasons(results: Any) -> Counter[str]:
    return Counter(result.reason for result in results if isinstance(result, Skipped))


def logistic(watts: float, threshold: float = 650, alpha: float = 0.01, offset: float = 10) -> float:
    return (1 - 1 / (1 + math.exp(-alpha * (watts - threshold)))) * (100 - offset) + offset


def test_defaults(sample: Load) -> None:
    module = sample()
    values = module.MIN_LENGTH, module.HORIZON_LENGTH, module.THRESHOLD, module.ALPHA, module.OFFSET
    assert values == (20, 10, 200.0, 1.0, 10.0)


def test_headroom_is_for_the_forecast_load_plus_one_pod(sample: Load) -> None:
    module = sample(THRESHOLD="650", ALPHA="0.01")
    scores = by_key(module.power_headroom([gpu("app01-x", [5, 7], profile="2g.24gb")]))
    # The node continues at its average of 6 W; the application drew at most 7 W.
    assert scores.pop("app01;2g.24gb") == pytest.approx(99.84616905277457, abs=1e-12)
    assert scores == dict.fromkeys(("app01;all", "app01;3g.48gb", "app02;all", "app02;2g.24gb", "app02;3g.48gb"), 10.0)


def test_nodes_add_up_and_the_application_is_the_mean_of_its_nodes(sample: Load) -> None:
    module = sample(THRESHOLD="650", ALPHA="0.01")
    series_list = [
        gpu("app01-a", [100, 120], profile="2g.24gb"),
        gpu("app01-b", [10, 10], profile="2g.24gb"),
        gpu("other", [50, 50]),
        gpu("app01-c", [60, 80], node="n2", profile="2g.24gb"),
    ]
    base = (160 + 180) / 2 + 70
    assert by_key(module.power_headroom(series_list))["app01;2g.24gb"] == pytest.approx(logistic((130 + 80) / 2 + base))


def test_longer_series_is_forecast(sample: Load) -> None:
    module = sample(THRESHOLD="650", ALPHA="0.01")
    rising = gpu("app02-x", [float(watts) for watts in range(100, 160)])
    # The next ten steps are 160 to 169 W, on average 164.5 W; the maximum so far is 159 W.
    assert by_key(module.power_headroom([rising]))["app02;all"] == pytest.approx(logistic(164.5 + 159), rel=1e-3)


def test_ended_node_is_not_counted_but_informs_the_draw_of_its_application(sample: Load) -> None:
    module = sample(THRESHOLD="650", ALPHA="0.01")
    running = gpu("other", [300.0] * 61)
    ended_series = gpu("app01-x", [200.0] * 21, node="n2")
    results = list(module.power_headroom([running, ended_series]))
    assert by_key(results)["app01;all"] == pytest.approx(logistic(300 + 200))
    assert reasons(results) == {"ended": 1}
    # A series that ended ten steps ago may be a failing scrape.
    late = gpu("app01-x", [200.0] * 51, node="n2")
    results = list(module.power_headroom([running, late]))
    assert by_key(results)["app01;all"] == pytest.approx(logistic(500 + 200))
    assert not reasons(results)


def test_pod_scraped_every_other_time_draws_continuously(sample: Load) -> None:
    module = sample(THRESHOLD="650", ALPHA="0.01")
    whole = gpu("other", [300.0] * 61)
    for missing_parity in (0, 1):
        half = gpu("app01-x", [np.nan if at % 2 == missing_parity else 299.0 for at in range(61)])
        expected = logistic(599 + 299)
        assert by_key(module.power_headroom([whole, half]))["app01;all"] == pytest.approx(expected, rel=1e-3)
        times = np.isfinite(half.values)
        absent = Series(half.labels, half.times[times], half.values[times])
        assert by_key(module.power_headroom([whole, absent]))["app01;all"] == pytest.approx(expected, rel=1e-3)


def test_pod_has_no_power_draw_before_its_start_and_in_a_long_gap(sample: Load) -> None:
    module = sample()
    times = 60.0 * np.arange(61)
    started = module.drawn(gpu("a", [5.0] * 31, start=1800), times, 600)
    assert np.flatnonzero(np.isfinite(started)).tolist() == list(range(30, 61))
    both = Series.of({}, [1.0, 2.0], step=1200, start=0)
    assert np.isnan(module.drawn(both, times[:21], 600)).tolist() == [False, *[True] * 19, False]
    assert module.drawn(both, times[:21], 1200)[10] == 1.5


def test_series_without_labels_are_skipped_and_counted(sample: Load) -> None:
    module = sample()
    results = list(
        module.power_headroom([gpu("", [900]), gpu("app01-x", [900], node=""), Series.of({}, [1]), gpu("app01-x", [1])])
    )
    assert reasons(results) == {"no_exported_pod": 1, "no_hostname": 2}
    # Skipped series do not count for the node either.
    assert by_key(results)["app01;all"] == pytest.approx(100)


def test_nan_and_empty_series_are_ignored(sample: Load) -> None:
    series_list = [gpu("app01-x", [float("nan")] * 3), gpu("app02-x", [])]
    assert set(by_key(sample().power_headroom(series_list)).values()) == {10.0}


def test_headroom_never_overflows(sample: Load) -> None:
    module = sample(ALPHA="1e6")
    assert module.headroom(1e308) == 10
    assert module.headroom(-1e308) == 100
    assert module.headroom(200) == 55


@pytest.mark.parametrize(
    ("profile", "device"),
    [
        ("3g.48gb", "3g.48gb"),
        ("3g.47gb", "3g.48gb"),
        ("2g.24gb+me", "2g.24gb"),
        ("", "all"),
        ("all", "all"),
        # A device that is not in the file does not count as a whole device.
        ("1g.12gb", "1g.12gb"),
    ],
)
def test_profiles(sample: Load, profile: str, device: str) -> None:
    module = sample()
    assert module.config.device(profile) == device
    scores = by_key(module.power_headroom([gpu("app01-x", [1, 1], profile=profile)]))
    assert [key for key, score in scores.items() if score > 99] == ([] if device[0] == "1" else [f"app01;{device}"])


def test_pods_belong_to_the_first_application_whose_pattern_fits(sample: Load, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    patterns = {"chat": ["chat-?", "web*"], "web": ["web-1", "[x]*"]}
    file.write_text(json.dumps({"applications": [{"name": name, "pod_alias": p} for name, p in patterns.items()]}))
    config = sample(CONFIG_FILE=str(file)).config
    names = {
        pod: (application.name if (application := config.application(pod)) else None)
        for pod in ("chat-1", "chat-10", "web-1")
    }
    assert names == {"chat-1": "chat", "chat-10": None, "web-1": "chat"}
    assert config.keys == [("chat", "all"), ("web", "all")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read .*: No such file"),
        ("{", "Invalid JSON"),
        ('{"applications": [{}]}', r"applications\.0\.name"),
        ('{"applications": [{"name": "a", "full_tokens_per_second": -1}]}', "full_tokens_per_second"),
    ],
)
def test_invalid_config_file_is_refused(sample: Load, tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "config.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ScorerError, match=message):
        sample(CONFIG_FILE=str(file))


def test_performance_equals_the_table_for_any_series(sample: Load) -> None:
    module = sample()
    table = {
        "app01;all": 80.0,
        "app02;all": 80.0,
        "app01;3g.48gb": 60.0,
        "app02;3g.48gb": 55.0,
        "app01;2g.24gb": 10.0,
        "app02;2g.24gb": 15.0,
    }
    for series_list in ([], [Series.of({"pod": "app01-0"}, [1000])], [Series.of({}, [1])]):
        results = list(module.speed(series_list))
        assert by_key(results) == table
        assert not reasons(results)


def test_performance_is_measured_if_capacities_are_configured(sample: Load, tmp_path: Path) -> None:
    config = json.loads((ROOT / "samples" / SAMPLE / "config.json").read_text())
    config["applications"][0]["full_tokens_per_second"] = 500
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    series_list = [
        Series.of({"pod": "app01-0"}, [0, 200, np.nan]),
        Series.of({"pod": "app01-1"}, [150]),
        Series.of({"pod": "app01-2", "GPU_I_PROFILE": "1g.12gb"}, [5000]),
        Series.of({"pod": "app01-3", "GPU_I_PROFILE": "2g.24gb"}, [np.nan]),
        Series.of({"pod": "app02-0"}, [1]),
        Series.of({"pod": "stranger"}, [1]),
        Series.of({"node": "n1"}, [1]),
    ]
    results = list(sample(CONFIG_FILE=str(file)).speed(series_list))
    scores = by_key(results)
    assert (scores["app01;all"], scores["app01;1g.12gb"], scores["app01;2g.24gb"]) == (40.0, 100.0, 10.0)
    assert scores["app02;all"] == 80.0
    assert reasons(results) == {"no_pod": 1}


def test_both_scorers_query_the_same_prometheus(sample: Load) -> None:
    module = sample(SOURCE_HOST="http://thanos:9090")
    assert {app_module.config()["source"]["host"] for app_module in (module.power, module.performance)} == {
        "http://thanos:9090"
    }
