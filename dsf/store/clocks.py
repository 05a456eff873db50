"""Detects wrong clocks. The hub's clock is that of Redis, and every process reports its own machine's difference to it.

If several machines differ from Redis by the same amount, the clock of Redis is wrong.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from typing import Final

import redis
from pydantic import BaseModel, ConfigDict

from dsf import keys
from dsf.process.hubclock import TOLERANCE, HubClock, describe_offset
from dsf.settings import Settings
from dsf.store.client import parse_all_stored

#: Seconds for which a report is valid. Processes report every few seconds.
_REPORT_SECONDS: Final = 60.0
#: Maximum number of agents whose clocks are reported.
MAX_WITNESSES: Final = 20


class ClockReport(BaseModel):
    """The difference between the hub's clock and a machine's clock, as measured by a process."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    #: Text for messages, such as `beat on node-7`.
    name: str
    #: The hub's time minus the machine's, in seconds.
    offset: float
    #: Unix seconds by the hub's clock.
    at: float


class ClockReports:
    """Writes the clock reports of one process. Methods raise redis.RedisError."""

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        """`settings` are those of the process, whose role or service becomes its name in messages."""
        self._redis = client
        host = socket.gethostname()
        self._field = f"{host}:{os.getpid()}"
        is_only_service = settings.role != "hub" or len(settings.targets) > 1
        self._name = f"{settings.role if is_only_service else settings.targets[0]} on {host}"

    def report(self, clock: HubClock) -> None:
        """Report the difference of this machine's clock."""
        self._write({self._field: ClockReport(name=self._name, offset=round(clock.offset(), 3), at=clock.now())})

    def report_agents(self, offsets: Mapping[str, float], now: float) -> None:
        """Report the differences of agents' clocks by cluster (seconds, as in ClockReport), measured at `now`."""
        witness_offsets = list(offsets.items())[:MAX_WITNESSES]
        self._write(
            {
                f"agent {name}": ClockReport(name=f"the agent of {name}", offset=offset, at=now)
                for name, offset in witness_offsets
            }
        )

    def _write(self, reports: Mapping[str, ClockReport]) -> None:
        if reports:
            self._redis.hset(keys.CLOCKS, mapping={name: report.model_dump_json() for name, report in reports.items()})


def read_reports(client: redis.Redis, now: float) -> list[ClockReport]:
    """Return the reports that are valid at `now`, and remove the others. Raises redis.RedisError."""
    reports = parse_all_stored(ClockReport, client.hgetall(keys.CLOCKS))
    expired_names = [name for name, report in reports.items() if abs(now - report.at) > _REPORT_SECONDS]
    if expired_names:
        client.hdel(keys.CLOCKS, *expired_names)
    return [report for name, report in sorted(reports.items()) if name not in expired_names]


def find_clock_problem(reports: Collection[ClockReport]) -> str:
    """Return one sentence that names the machine with a wrong clock, or an empty string if all agree within 30 s."""
    wrong_reports = [report for report in reports if abs(report.offset) > TOLERANCE]
    if not wrong_reports:
        return ""
    # For each wrong clock, the reports with the same offset.
    groups = (
        [other_report for other_report in wrong_reports if abs(other_report.offset - report.offset) <= TOLERANCE]
        for report in wrong_reports
    )
    largest_group = max(groups, key=len)
    # Machines that agree with Redis, and Redis itself.
    agreeing_machines = len(reports) - len(wrong_reports) + 1
    names = _list_machines([report.name for report in largest_group])
    if len(largest_group) > agreeing_machines:
        offset = largest_group[0].offset
        return (
            f"the clock of the machine of Redis is {describe_offset(-offset)} the clocks of {names}; it gives all "
            "times of the hub: synchronise it (NTP)"
        )
    if len(largest_group) == agreeing_machines:
        offset = largest_group[0].offset
        return (
            f"the clock of {names} is {describe_offset(offset)} that of the machine of Redis; one of them is wrong: "
            "synchronise both (NTP)"
        )
    worst_report = max(wrong_reports, key=lambda report: abs(report.offset))
    suffix = f" (and {len(wrong_reports) - 1} more)" if len(wrong_reports) > 1 else ""
    offset_text = describe_offset(worst_report.offset)
    return f"the clock of {worst_report.name} is {offset_text} the hub's{suffix}; synchronise it (NTP)"


def _list_machines(names: Collection[str]) -> str:
    first_names = list(names)[:3]
    omitted_count = len(names) - len(first_names)
    return ", ".join(first_names) + (f" and {omitted_count} more" if omitted_count else "")
