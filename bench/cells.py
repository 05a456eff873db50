"""Several hub cells on one machine, over one folder of manifests: their cost, their books, and clusters that move.

    python -m bench.cells [--cells N] [--clusters N] [--moved N] [--interval S] [--seconds S] [--quick] [--json FILE]

Each cell has a Redis, hub controller, beat, results worker and exporter of its own and an equal share of the clusters
with 10 scorers each; their agents are played (`bench.player`). It is brought up, watched, and then clusters get the
label of another ManagedClusterSet, so that they move from the first cell to the second. Said are CPU and memory of each
cell, whether the books balance, cell by cell and in all, and for how long moved pairs had no newer score.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path

from bench.common import Figure, Measurement, options, report
from bench.fleet import quantile
from bench.fleetworld import Books, Player, World
from bench.hub import SCORERS, ScoringApi
from dsf import keys
from dsf.messages import run_time
from dsf.store.pairs import Pairs

CLUSTERS, QUICK_CLUSTERS = 10_000, 40
SECONDS, QUICK_SECONDS = 90.0, 30.0


class CellWorld(World):
    """One cell: as a world of its own, on the manifests of all."""

    def __init__(self, folder: Path, api: str, number: int, cells: int, clusters: int, moved: int) -> None:
        share = clusters // cells
        folder.mkdir()
        super().__init__(folder, api, share + moved, 1)
        self.name = _name(number)
        self._cells = [{"name": _name(0)}, *({"name": _name(n), "clusterSets": [_name(n)]} for n in range(1, cells))]
        #: Those that it begins with, and those that it ends with.
        self.clusters = [_cluster(one) for one in range(number * share, (number + 1) * share)]
        # The last ones of the first cell move to the second.
        self._first = number * share - (moved if number == 1 else 0)
        self.use(self.clusters)
        self._fleet.folder = folder.parent / "manifests"
        self._fleet.clusters = []

    def manifests(self) -> None:
        """Write what all cells have in common."""
        self._fleet.manifests()

    def scheduled(self, pairs: Sequence[tuple[str, str]]) -> int:
        """Cycles of these pairs in the books."""
        return sum(state.scheduled for state in Pairs(self.client).states(pairs))

    def use(self, clusters: Sequence[str]) -> None:
        """These are its clusters."""
        self.pairs = [(name, f"scorer-{number}") for name in clusters for number in range(SCORERS)]

    def bring_up(self) -> None:
        """Start everything; returns when every pair has its object."""
        self._run("beat", "dsf.beat")
        self._run("hub", "dsf.hub")
        self._run("exporter", "dsf.exporter", exporter_host="127.0.0.1", exporter_port=self._port)
        self._run("results", "dsf.results")
        count = len(self.pairs) // SCORERS + int(self.clusters[0].removeprefix("cluster-")) - self._first
        self._player = Player(
            *("--clusters", str(count), "--first", str(self._first)),
            environment=self._environment(role="agent", cluster="cluster-0000"),
            log=self.folder / "player.log",
        )
        self._until(lambda: self.client.hlen(keys.WRITTEN) == len(self.pairs), f"every object of cell {self.name}")

    def newest(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], float]:
        """When the newest score of each of these pairs was due, unix seconds; 0 before the first."""
        found: dict[tuple[str, str], float] = {}
        for start in range(0, len(pairs), 1000):
            part = pairs[start : start + 1000]
            with self.client.pipeline(transaction=False) as pipe:
                for pair in part:
                    pipe.hget(keys.pair_key(*pair), "score_run")
                found |= {pair: run_time(run) if run else 0.0 for pair, run in zip(part, pipe.execute(), strict=True)}
        return found

    def _environment(self, **values: object) -> dict[str, str]:
        return super()._environment(cell=self.name, cells=self._cells, **values)


def _name(number: int) -> str:
    return f"cell-{number}"


def _cluster(number: int) -> str:
    return f"cluster-{number:04}"


def _write(folder: Path, name: str, in_set: str) -> None:
    labels = {"cluster.open-cluster-management.io/clusterset": in_set} if in_set else {}
    manifest = {
        "apiVersion": "cluster.open-cluster-management.io/v1",
        "kind": "ManagedCluster",
        "metadata": {"name": name, "labels": labels},
        "spec": {"hubAcceptsClient": True},
    }
    draft = folder / f".{name}.new"
    draft.write_text(json.dumps(manifest), encoding="utf-8")
    draft.replace(folder / f"clusters/{name}.yaml")


@contextlib.contextmanager
def worlds(cells: int, clusters: int, moved: int, interval: int) -> Iterator[list[CellWorld]]:
    """All cells, which end with the block; nothing is started."""
    ScoringApi.interval = interval
    api = ThreadingHTTPServer(("127.0.0.1", 0), ScoringApi)
    threading.Thread(target=api.serve_forever, daemon=True).start()
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            root, url = Path(folder), f"http://127.0.0.1:{api.server_address[1]}"
            made = [
                stack.enter_context(CellWorld(root / _name(number), url, number, cells, clusters, moved))
                for number in range(cells)
            ]
            made[0].manifests()
            (root / "manifests/clusters").mkdir()
            for number, world in enumerate(made):
                for name in world.clusters:
                    _write(root / "manifests", name, _name(number) if number else "")
            yield made
    finally:
        api.shutdown()


def measure(cells: int, clusters: int, moved: int, interval: int, seconds: float) -> Measurement:
    """All of it."""
    with worlds(cells, clusters, moved, interval) as made, ThreadPoolExecutor(cells) as pool:
        began = time.monotonic()
        list(pool.map(CellWorld.bring_up, made))
        up = time.monotonic() - began
        _say(f"up in {up:.0f} s")
        seen = list(pool.map(lambda world: world.watch(seconds), made))
        _say("watched")
        gaps, took, scheduled = _move(made, moved)
        _say(f"moved in {took:.0f} s")
        books = list(pool.map(CellWorld.books, made))
    figures: list[Figure] = []
    for world, one, book in zip(made, seen, books, strict=True):
        milli = {name: 1000 * share for name, share in one.cores.items()}
        text = ", ".join(f"{name} {value:.0f}" for name, value in milli.items())
        memory = sum(one.memory.values()) / 2**20
        figures += [
            Figure(f"{world.name}: CPU of all processes", text, sum(milli.values()), "mCPU"),
            Figure(f"{world.name}: resident memory of all", "", memory, "MiB"),
            Figure(
                f"{world.name}: from a result's put until it is in the books",
                f"p50 {quantile(one.latencies, 0.5):.3f}, p99 {quantile(one.latencies, 0.99):.3f} s; "
                f"{one.cycles / one.seconds:.0f} results a second; at most {max(one.waiting)} waiting",
                quantile(one.latencies, 0.99),
                "s",
            ),
            _books(f"{world.name}: books", book),
        ]
    total = Books(*(sum(getattr(one, name) for one in books) for name in ("scheduled", "ended", "ticks")), "", 0)
    # What pairs had in the books of the cell that they left went with them.
    figures += [
        Figure(
            "all cells: books",
            f"{total.ticks} ticks by all beats = {total.scheduled} scheduled + {scheduled} of pairs that left",
            total.ticks - total.scheduled - scheduled,
            "ticks missing",
            "those between the last look at a pair and its move are not in the books of either cell",
        ),
        Figure(
            f"{moved} clusters move: from a pair's last score in the old cell to its first in the new one",
            f"p50 {quantile(gaps, 0.5):.1f}, p99 {quantile(gaps, 0.99):.1f}, at most {max(gaps, default=0):.1f} s; "
            f"all in {took:.0f} s",
            max(gaps, default=0) / interval,
            "intervals",
            most=2,
        ),
        Figure(
            "pairs that lost a cycle, or more",
            f"{sum(gap > interval + 1 for gap in gaps)} and {sum(gap > 2 * interval for gap in gaps)} of {len(gaps)}",
            sum(gap > 2 * interval for gap in gaps),
            "pairs that lost more than one",
            most=0,
        ),
    ]
    details = {"cells": cells, "clusters": clusters, "moved": moved, "interval": interval, "up": up, "gaps": gaps}
    return figures, details


def _move(made: Sequence[CellWorld], moved: int) -> tuple[list[float], float, int]:
    """Have clusters of the first cell move to the second: seconds between two scores of each pair, the seconds until
    all have one in the new cell, and what the books of the old one said of them just before."""
    old, new = made[0], made[1]
    names = old.clusters[len(old.clusters) - moved :]
    pairs = [(name, f"scorer-{number}") for name in names for number in range(SCORERS)]
    last, scheduled = old.newest(pairs), old.scheduled(pairs)
    began = time.monotonic()
    for name in names:
        _write(old.folder.parent / "manifests", name, new.name)
    first: dict[tuple[str, str], float] = {}
    while len(first) < len(pairs):
        found = new.newest([pair for pair in pairs if pair not in first])
        first |= {pair: at for pair, at in found.items() if at}
        # The old cell may have had one more before it let go.
        for pair, at in old.newest([pair for pair in pairs if pair not in first]).items():
            last[pair] = max(last[pair], at)
        time.sleep(0.2)
    took = time.monotonic() - began
    old.use([name for name in old.clusters if name not in names])
    new.use([*new.clusters, *names])
    return [first[pair] - last[pair] for pair in pairs], took, scheduled


def _books(name: str, book: Books) -> Figure:
    text = f"{book.scheduled} scheduled, {book.ended} ended ({book.text}); {book.ticks} by beat"
    return Figure(name, text, book.wrong + abs(book.scheduled - book.ended), "cycles missing", most=0)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--cells", type=int, default=2, help="how many (default 2)")
    parser.add_argument("--clusters", type=int, help=f"in all cells together (default {CLUSTERS})")
    parser.add_argument("--moved", type=int, help="of them move (default a twentieth of a cell's)")
    parser.add_argument("--interval", type=int, default=30, help="seconds between two cycles of a pair (default 30)")
    parser.add_argument("--seconds", type=float, help=f"of the measurement (default {SECONDS:g})")
    arguments = parser.parse_args()
    clusters = arguments.clusters or (QUICK_CLUSTERS if arguments.quick else CLUSTERS)
    moved = arguments.moved or max(1, clusters // arguments.cells // 20)
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    return report(arguments, measure(arguments.cells, clusters, moved, arguments.interval, seconds))


if __name__ == "__main__":
    sys.exit(main())
