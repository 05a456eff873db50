"""The whole hub under a whole fleet: every process, Redis included, from tick to score.

    python -m bench.fleet [--clusters N ...] [--seconds S] [--workers W] [--overload S] [--flood S]
                          [--soak S] [--seed N] [--single [--kill]]
                          [--kube | --real | --hub-api | --kubelet] [--redis FILE] [--quick] [--strict] [--json FILE]

Real hub controller, beat, results workers, page and Redis (with `--single`, one process of the hub) on a folder of
manifests; the agents of all clusters are played by one process (`bench.player`): 10 scorers every 30 s, signed
results of 10 items, of which 5 % have other values than the ones before. Each size is brought up, left alone for one
interval, and then measured.

`--overload S` afterwards gives the results workers half of the CPU that they took, for so many seconds, by stopping
and continuing them. `--kill`, with `--single`, kills the process of the hub once. `--flood S` has one cluster's
credential put 10,000 messages a second into its mailbox. `--soak S` makes faults for so long, with 3 bad scorers of
the 10 (`bench.soak` says which faults, and what is judged); a line on standard error each minute says where it is.

`--kube` has an API server in place of the folder (`bench.kubeworld`), whose own cost is a row of its own; `--soak`
needs the folder. `--real` starts a real agent for each cluster, on the folder, with 100 series a cycle; their cost is a
row of its own, too. `--hub-api` does the same with a real kube-apiserver between agents and Redis (`bench.hubapiworld`)
and an interval of 150 s; `python -m bench.kubeletworld` runs it with a real kubelet, too (`--kubelet`). `--redis` is a
redis-server in place of the wheel's Valkey, which is built with the C library's allocator, not with jemalloc as Redis'
own images are.

CPU is that of the processes (user and system, all threads that ever lived, children included); what is waited for
depends on what else the machine does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.common import Figure, Measurement, make_parser, report
from bench.fleetworld import INTERVAL, World
from bench.hub import SCORERS, ScoringApi
from bench.hubapiworld import HubApiWorld, SlowApi
from bench.kubeworld import SERVERS, KubeWorld
from bench.line import Line
from bench.realworld import AGENTS, RealApi, RealWorld
from bench.soak import Soak

SIZES, QUICK_SIZES = (100, 1000, 3500), (20, 100)
SECONDS, QUICK_SECONDS = 90.0, 30.0
#: Limits: clusters -> mCPU and MiB of all processes together.
_LIMITS = {1000: (333, 450), 3500: (900, 900)}
_WAITING, _BYTES_PER_PAIR, _COMMANDS, _LATENCY = 100, 5 * 1024, 20, 2.0


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile of these values; NaN without values."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


@dataclass(frozen=True)
class FleetPlan:
    """Steps of the measurement of each size; times are in seconds, 0 skips a step."""

    seconds: float
    workers: int = 1
    overload: float = 0.0
    flood: float = 0.0
    soak: float = 0.0
    seed: int = 7
    #: True for a hub on an API server.
    kube: bool = False
    #: True for real agents.
    real: bool = False
    #: True for real agents that reach Redis through an API server.
    hub_api: bool = False
    #: As `hub_api`, with a kubelet.
    kubelet: bool = False
    redis: Path | None = None
    #: True if one process has all services of the hub.
    single: bool = False
    #: True if the single process is killed after the measurement.
    kill: bool = False


def disturb(world: World, plan: FleetPlan, cores: Mapping[str, float]) -> dict[str, Any]:
    """Run overload, kill and flood, and return their measurements by name; `cores` are those of each process before."""
    measured: dict[str, Any] = {}
    if plan.overload:
        measured["overload"] = world.overload(plan.overload, cores["results"])
    if plan.kill:
        measured["kill"] = world.kill_hub()
    if plan.flood:
        measured["flood"] = world.flood(plan.flood)
    return measured


def measure_size(clusters: int, plan: FleetPlan) -> Measurement:
    """Measure one size, with separate processes."""
    name = f"{clusters} x {SCORERS}"
    with start_world(clusters, plan) as world:
        world.single = plan.single
        began = time.monotonic()
        world.bring_up()
        up = time.monotonic() - began
        measured = world.watch(plan.seconds)
        hub_api_cost = world.cost(measured) if isinstance(world, HubApiWorld) else None
        mix = world.commands(min(10.0, plan.seconds))
        disturbance = disturb(world, plan, measured.cores)
        soak = Soak(world, plan.soak, plan.seed) if plan.soak else None
        if soak is not None:
            soak.run()
        books = world.read_totals()
        soaked: list[Figure] = []
        if soak is not None:
            soaked, disturbance["soak"] = soak.make_figures(name, books)
        size = world.bytes_per_pair()
    pairs, interval = clusters * SCORERS, SlowApi.interval if plan.hub_api else INTERVAL
    most_cpu, most_memory = _LIMITS.get(clusters, (None, None))
    milli = {process: 1000 * share for process, share in measured.cores.items()}
    memory = {process: rss / 2**20 for process, rss in measured.memory.items()}
    servers = [
        f"{process} {milli.pop(process):.0f} mCPU, {memory.pop(process):.0f} MiB"
        for process in (*(world.servers if isinstance(world, HubApiWorld) else SERVERS), AGENTS)
        if process in milli
    ]
    text = ", ".join(f"{process} {value:.0f}" for process, value in milli.items())
    figures = [
        Figure(f"{name}: CPU of all processes", text, sum(milli.values()), "mCPU", upper_limit=most_cpu),
        Figure(
            f"{name}: resident memory of all",
            ", ".join(f"{process} {value:.0f}" for process, value in memory.items()),
            sum(memory.values()),
            "MiB",
            upper_limit=most_memory,
        ),
        Figure(
            f"{name}: results waiting",
            f"p50 {statistics.median(measured.waiting):.0f}, at most {max(measured.waiting)}; "
            f"{measured.cycles / measured.seconds:.0f} of {pairs / interval:.0f} results a second",
            quantile(measured.waiting, 0.99),
            "results",
            "p99 of looks twice a second",
            upper_limit=_WAITING,
        ),
        Figure(
            f"{name}: lag of ticks",
            f"p50 {measured.lag[0]:g}, p99 {measured.lag[1]:g} s",
            measured.lag[1],
            "s",
            "<= buckets",
        ),
        Figure(
            f"{name}: commands a cycle",
            f"{mix.outer:.1f} sent, {mix.inside:.1f} in scripts; "
            f"{measured.bytes_in:.0f} B in, {measured.bytes_out:.0f} B out",
            mix.outer,
            "commands",
            upper_limit=_COMMANDS,
        ),
        Figure(f"{name}: memory of Redis a pair", "history full", size, "B", upper_limit=_BYTES_PER_PAIR),
        Figure(
            f"{name}: a scrape of /metrics",
            f"{measured.scrape_bytes / 2**20:.1f} MiB in {measured.scrape_seconds:.1f} s",
            measured.scrape_bytes / 2**20,
            "MiB",
            upper_limit=5,
        ),
        Figure(
            f"{name}: books",
            f"{books.scheduled} scheduled, {books.finished} ended ({books.text}); "
            f"{books.ticks} by beat; up in {up:.0f} s",
            books.scheduled - books.finished,
            "cycles missing",
            upper_limit=0,
        ),
    ]
    if measured.latencies:
        # Real agents do not track the results that they send.
        text = f"p50 {quantile(measured.latencies, 0.5):.3f}, p99 {quantile(measured.latencies, 0.99):.3f} s"
        number = f"{len(measured.latencies)} of them"
        what = f"{name}: from a result's put until it is in the books"
        figures.append(Figure(what, text, quantile(measured.latencies, 0.99), "s", number))
    if isinstance(world, RealWorld):
        figures.append(Figure(f"{name}: real agents", "; ".join(servers), float(clusters), "agents"))
    if hub_api_cost is not None:
        figures.append(Figure(f"{name}: servers between agents and Redis", *hub_api_cost, "s", "the API server's"))
    if isinstance(world, KubeWorld):
        total = sum(world.writes.values())
        text = ", ".join(f"{resource} {number}" for resource, number in world.writes.most_common())
        per_cycle = total / max(measured.cycles, 1)
        figures.append(Figure(f"{name}: API server", "; ".join([*servers, text]), per_cycle, "writes a cycle"))
    if "overload" in disturbance:
        overload = disturbance["overload"]
        figures.append(
            Figure(
                f"{name}: half of the CPU that results need",
                f"at most {overload['longest']:.2f}; oldest score of a pair {overload['oldest']:.0f} s, "
                f"p99 {overload['p99']:.0f} s; {overload['scores']:.2f} of the cycles became scores; "
                f"normal {overload['normal']:.0f} s after",
                overload["gap"],
                "intervals",
                "p99 of the longest time between two scores of a pair",
                # The due times of a pair are not known to the microsecond.
                upper_limit=2.01,
            )
        )
        normal = f"{overload['normal']:.0f} s"
        figures.append(
            Figure(f"{name}: normal after it", normal, overload["normal"] / INTERVAL, "intervals", upper_limit=1)
        )
    if "kill" in disturbance:
        kill = disturbance["kill"]
        figures.append(
            Figure(
                f"{name}: kill -9 of the single process, until results are ingested again",
                f"{kill['back']:.1f} s; every score at most an interval old after {kill['fresh']:.0f} s; "
                f"at most {kill['waiting']:.0f} results waiting",
                kill["back"],
                "s",
                "started again after 1 s",
                upper_limit=15,
            )
        )
    if "flood" in disturbance:
        overload = disturbance["flood"]
        figures.append(
            Figure(
                f"{name}: {overload['rate']:.0f} messages/s of one cluster, the others from put to books",
                f"p50 {overload['p50']:.3f}, p99 {overload['p99']:.3f} s; {overload['text']}",
                overload["p99"],
                "s",
                upper_limit=_LATENCY,
            )
        )
    figures += soaked
    details = {"milli": milli, "memory": memory, "commands": mix.names, "bytes_per_pair": size, **disturbance}
    return figures, details


@contextlib.contextmanager
def start_world(clusters: int, plan: FleetPlan) -> Iterator[World]:
    """Yield the processes of one size, which end with the block."""
    handler = SlowApi if plan.hub_api else RealApi if plan.real else ScoringApi
    api = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    kind = KubeWorld if plan.kube else HubApiWorld if plan.hub_api else RealWorld if plan.real else World
    if plan.kubelet:
        # Imported here, because only this world needs tests/node.
        from bench.kubeletworld import KubeletWorld

        kind = KubeletWorld
    threading.Thread(target=api.serve_forever, daemon=True).start()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            kind(
                Path(folder), f"http://127.0.0.1:{api.server_address[1]}", clusters, plan.workers, plan.redis
            ) as world,
        ):
            yield world
    finally:
        api.shutdown()


def lines(sizes: dict[int, dict[str, Any]]) -> list[Figure]:
    """Return rows that show, for each process and for all, how the cost grows with the pairs, and where it grows
    faster.
    """
    figures = []
    for kind, unit in (("milli", "mCPU"), ("memory", "MiB")):
        names = [*next(iter(sizes.values()))[kind], "all"]
        for name in names:
            points = [
                (clusters * SCORERS, sum(values[kind].values()) if name == "all" else values[kind][name])
                for clusters, values in sizes.items()
            ]
            line = Line.through(points)
            text = f"{line.base:.0f} + {1000 * line.slope:.1f} a 1,000 pairs; {line.bend(points)}"
            figures.append(Figure(f"{name}: {unit} by size", text, 1000 * line.slope, f"{unit}/1,000 pairs"))
    return figures


def measure(clusters: Sequence[int], plan: FleetPlan, *, say: bool = True) -> Measurement:
    """Measure all sizes, one after the other."""
    figures: list[Figure] = []
    sizes: dict[int, dict[str, Any]] = {}
    for number in clusters:
        new_figures, sizes[number] = measure_size(number, plan)
        figures += new_figures
        if say:
            for figure in new_figures:
                print(f"{figure.name}: {figure.measured}", file=sys.stderr, flush=True)
    if len(sizes) > 1:
        figures += lines(sizes)
    return figures, {str(number): values for number, values in sizes.items()}


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    sizes = ", ".join(map(str, SIZES))
    parser.add_argument("--clusters", type=int, nargs="+", help=f"sizes, one after the other (default {sizes})")
    parser.add_argument("--seconds", type=float, help=f"of each measurement (default {SECONDS:g})")
    parser.add_argument("--workers", type=int, default=1, help="results workers")
    parser.add_argument("--overload", type=float, default=0.0, metavar="S", help="seconds with half of the CPU")
    parser.add_argument("--flood", type=float, default=0.0, metavar="S", help="seconds with a flood")
    parser.add_argument("--soak", type=float, default=0.0, metavar="S", help="seconds with faults")
    parser.add_argument("--seed", type=int, default=7, help="which faults (default 7)")
    parser.add_argument("--kube", action="store_true", help="on an API server")
    parser.add_argument("--real", action="store_true", help="with real agents")
    parser.add_argument("--hub-api", action="store_true", help="with real agents behind an API server")
    parser.add_argument("--kubelet", action="store_true", help="see bench.kubeletworld, which gives it")
    parser.add_argument("--single", action="store_true", help="all services of the hub in one process")
    parser.add_argument("--kill", action="store_true", help="kill the single process after the measurement")
    parser.add_argument("--redis", type=Path, metavar="FILE", help="a redis-server")
    arguments = parser.parse_args()
    # SIGTERM acts as Ctrl-C, which ends the hundreds of processes of a size.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if arguments.kube and arguments.soak:
        parser.error("--soak has no faults for an API server; leave out --kube")
    if arguments.kill and not arguments.single:
        parser.error("--kill is about the single process: add --single")
    arguments.hub_api |= arguments.kubelet
    arguments.real |= arguments.hub_api
    if arguments.real and (arguments.kube or arguments.soak or arguments.flood):
        parser.error("--real is on a folder, without --soak and --flood, which are for played agents; leave them out")
    if arguments.redis and not (arguments.redis.is_file() and os.access(arguments.redis, os.X_OK)):
        parser.error(f"{arguments.redis} is no program: --redis wants a redis-server")
    clusters = arguments.clusters or (QUICK_SIZES if arguments.quick else SIZES)
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    plan_options = {
        name: value for name, value in vars(arguments).items() if name in {item.name for item in fields(FleetPlan)}
    }
    plan = FleetPlan(**plan_options | {"seconds": seconds})
    return report(arguments, measure(clusters, plan))


if __name__ == "__main__":
    sys.exit(main())
