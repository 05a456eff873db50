"""Two scores of accelerators for AI workloads, by application and device: power headroom, and performance.

`/power` continues the power that the GPUs of each node draw (DCGM), adds what the application draws, and says how far
below a limit the sum is. `/performance` has a table, or the speed that pods were seen to reach (vLLM).
Which applications and devices there are is in config.json. Start it with `uvicorn app:app --port 8000`.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsf.scorer import Prometheus, Score, Scorer, ScorerApp, ScorerError, Series, Skipped, env_number, forecast

#: Name of a device that is not divided.
WHOLE = "all"
#: (application, device)
Key = tuple[str, str]
#: Numbers, one per time.
Watts = NDArray[np.float64]


class Application(BaseModel):
    """A workload that runs on the devices."""

    name: str
    #: Devices on which it may run: MIG profiles such as `3g.48gb`, or `all` for a whole GPU.
    device_candidates: list[str] = [WHOLE]
    #: Patterns of pod names; `*` and `?` are wildcards.
    pod_alias: list[str] = []
    #: Tokens per second of one pod that count as 100; 0: the table has its speed.
    full_tokens_per_second: float = Field(default=0, ge=0)


class TableScore(BaseModel):
    """A row of the table."""

    metric: dict[str, str]
    score: float


class Tables(BaseModel):
    """Scores that are known beforehand."""

    model_config = ConfigDict(extra="ignore")

    performance: list[TableScore] = []


class Config(BaseModel):
    """config.json."""

    applications: list[Application]
    static_score: Tables = Tables()

    @property
    def keys(self) -> list[Key]:
        """Everything that gets a score, in the order of the file."""
        return [
            (application.name, device) for application in self.applications for device in application.device_candidates
        ]

    def application(self, pod: str) -> Application | None:
        """Return the first application with a pattern that matches the name of the pod."""
        for application in self.applications:
            if any(fnmatchcase(pod, pattern) for pattern in application.pod_alias):
                return application
        return None

    def device(self, profile: str) -> str:
        """Return the device of a GPU_I_PROFILE: the one of this name, else one with as many slices.

        The memory in the name of a profile depends on the driver: `3g.47gb` is `3g.48gb` for another one.
        """
        devices = [device for application in self.applications for device in application.device_candidates]
        if not profile or profile in devices:
            return profile or WHOLE
        slices = profile.partition(".")[0]
        return next((device for device in devices if device.partition(".")[0] == slices), profile)


def read_config() -> Config:
    """Return the content of the file that CONFIG_FILE names. Raises ScorerError, which names field and problem."""
    file = Path(os.environ.get("CONFIG_FILE") or Path(__file__).parent / "config.json")
    try:
        return Config.model_validate_json(file.read_bytes())
    except OSError as error:
        raise ScorerError(f"cannot read {file}: {error.strerror}") from None
    except ValidationError as error:
        raise ScorerError(f"{file}: {error}") from None


#: A node whose power has fewer samples is expected to stay at its mean.
MIN_LENGTH = int(env_number("MIN_LENGTH", 20, least=1, whole=True))
#: Number of forecast steps.
HORIZON_LENGTH = int(env_number("HORIZON_LENGTH", 10, least=1, whole=True))
#: Watts at which half of the headroom is used, and the steepness per watt.
THRESHOLD = env_number("THRESHOLD", 200)
ALPHA = env_number("ALPHA", 1)
#: Lowest score, also for applications that never ran.
OFFSET = env_number("OFFSET", 10)

#: Source of both scores.
PROMETHEUS = os.environ.get("SOURCE_HOST") or "https://thanos-querier.openshift-monitoring.svc.cluster.local:9091"

config = read_config()

power = Scorer(
    name="ai-workload-power-scorer",
    description="A power score for ai workloads based on power usage.",
    score_name="ai_workload_power_score",
    interval=30,
    path="/power",
    source=Prometheus(
        host=PROMETHEUS,
        path="/api/v1/query_range",
        query="sum(DCGM_FI_DEV_POWER_USAGE) by (GPU_I_ID, GPU_I_PROFILE, exported_pod, Hostname)",
        range=3600,
        step=60,
    ),
    env="POWER_",
)
performance = Scorer(
    name="ai-workload-perf-scorer",
    description="A performance score for ai workloads based on token generation rate.",
    score_name="ai_workload_perf_score",
    interval=30,
    path="/performance",
    source=Prometheus(
        host=PROMETHEUS,
        path="/api/v1/query_range",
        query="sum(irate(vllm:generation_tokens_total[5m])) by (pod)",
        range=3600,
        step=60,
    ),
    env="PERFORMANCE_",
)

app = ScorerApp(power, performance, title="ai-workload-scorer")


@power.score
def power_headroom(series: list[Series]) -> Iterator[Score | Skipped]:
    """Yield the headroom of every application on each of its devices, and the series that were left out."""
    times = np.unique(np.concatenate([np.empty(0), *(item.finite().times for item in series)]))
    # All series of a range query have the same times. A time that is missing in a series means a missed scrape.
    patience = HORIZON_LENGTH * float(np.median(np.diff(times))) if times.size > 1 else 0.0
    nodes: dict[str, Watts] = {}
    power_by_node: dict[Key, dict[str, Watts]] = defaultdict(dict)
    for item in series:
        node, pod = item.labels.get("Hostname", ""), item.labels.get("exported_pod", "")
        if not node or not pod:
            yield item.skip("no_exported_pod" if node else "no_hostname")
            continue
        samples = item.finite()
        if samples.is_empty:
            continue
        watts = drawn(samples, times, patience)
        if np.isnan(watts[-1:]).any():
            # The workload has ended; its past power predicts that of its next run.
            yield item.skip("ended")
        else:
            nodes[node] = added(nodes.get(node), watts)
        application = config.application(pod)
        if application is not None:
            key = application.name, config.device(item.labels.get("GPU_I_PROFILE", ""))
            power_by_node[key][node] = added(power_by_node[key].get(node), watts)
    base = sum(expected(times, watts) for watts in nodes.values())
    for key in config.keys:
        highest = highest_mean(list(power_by_node.get(key, {}).values()))
        yield Score(
            OFFSET if highest is None else headroom(highest + base),
            {"app": key[0], "device": key[1]},
        )


def drawn(samples: Series, times: Watts, patience: float) -> Watts:
    """Return the watts of a series without NaN at all these times; NaN while it did not run.

    A workload runs from its first sample on, across gaps of at most `patience` seconds, whose watts are on a straight
    line; after the last sample it goes on for the same time.
    """
    order = np.argsort(samples.times, kind="stable")
    sample_times = samples.times[order]
    watts = np.interp(times, sample_times, samples.values[order], left=np.nan)
    next_times = np.append(sample_times, times[-1])[np.searchsorted(sample_times, times)]
    last = sample_times[np.maximum(np.searchsorted(sample_times, times, side="right") - 1, 0)]
    watts[next_times - last > patience] = np.nan
    return watts


def added(sum_so_far: Watts | None, watts: Watts) -> Watts:
    """Return the sum at each time over the running series; NaN if none ran."""
    if sum_so_far is None:
        return watts
    none = np.isnan(sum_so_far) & np.isnan(watts)
    return np.where(none, np.nan, np.nan_to_num(sum_so_far) + np.nan_to_num(watts))


def expected(times: Watts, watts: Watts) -> float:
    """Return the expected mean watts of a node in the next steps."""
    samples = Series({}, times, watts).finite()
    prediction = forecast(samples, horizon=HORIZON_LENGTH, least=MIN_LENGTH)
    return float(samples.values.mean() if isinstance(prediction, Skipped) else prediction.values.mean())


def highest_mean(nodes: list[Watts]) -> float | None:
    """Return the highest watts over time, as the mean of the nodes where it ran at that time; None if it never ran."""
    if not nodes:
        return None
    ran = np.array(nodes)
    ran = ran[:, np.isfinite(ran).any(axis=0)]
    return float(np.nanmean(ran, axis=0).max())


def headroom(watts: float) -> float:
    """Return 100 far below the threshold, OFFSET far above it, and in between the logistic function."""
    # tanh is the logistic function of twice the distance, and does not overflow.
    return OFFSET + (100 - OFFSET) * (0.5 - 0.5 * math.tanh(ALPHA * (watts - THRESHOLD) / 2))


@performance.score
def speed(series: list[Series]) -> Iterator[Score | Skipped]:
    """Yield the table, with measured values in place of assumed ones.

    Only an application with `full_tokens_per_second` is measured: by the highest rate of its pods, for a pod that has
    nothing to do is not slow.
    """
    measured: dict[Key, float] = {}
    if any(application.full_tokens_per_second for application in config.applications):
        for item in series:
            pod = item.labels.get("pod", "")
            if not pod:
                yield item.skip("no_pod")
                continue
            application = config.application(pod)
            rates = item.finite().values
            if application is None or not application.full_tokens_per_second or not rates.size:
                continue
            key = application.name, config.device(item.labels.get("GPU_I_PROFILE", ""))
            reached = min(100.0, 100 * float(rates.max()) / application.full_tokens_per_second)
            measured[key] = max(reached, measured.get(key, 0.0))
    for row in config.static_score.performance:
        key = row.metric.get("app", ""), row.metric.get("device", "")
        yield Score(measured.pop(key, row.score), row.metric)
    for (name, device), reached in measured.items():
        yield Score(reached, {"app": name, "device": device})
