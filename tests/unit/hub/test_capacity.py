"""The size limit of a cluster's ManifestWork, and the scorers that it excludes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

import pytest

from dsf.hub.manifestwork import Load, all_fit, compute_size, find_excluded, lower_limit, make_manifest_work
from dsf.hub.plan import FleetPlan, make_plan
from dsf.hub.secretdelivery import make_copy
from tests.unit.hub.builders import NOW, cluster, config, scorer
from tests.unit.hub.test_authentications import SOURCE, authentication
from tests.unit.hub.test_secret_delivery import secret

KIB = 1024
#: Limit of the tests in bytes. 4 KiB are reserved for shared objects.
LIMIT = 104 * KIB


def load(key: str, kib: float, year: int = 2026, secrets: Mapping[str, int] | None = None) -> Load:
    return Load(key, datetime.fromisoformat(f"{year}-01-01T00:00:00Z"), int(kib * KIB), secrets or {})


@pytest.mark.parametrize(
    ("loads", "excluded"),
    [
        ([load("hub/a", 50), load("a/b", 50)], ""),
        ([load("a/old", 90, 2020), load("hub/new", 20)], "a/old"),
        ([load("hub/new", 60, 2026), load("hub/old", 60, 2020)], "hub/new"),
        # A small scorer fits where a larger, older one does not.
        ([load("hub/a", 60, 2020), load("hub/b", 60, 2021), load("hub/c", 40, 2022)], "hub/b"),
        # Namespaces get equal shares; unused bytes go to the others.
        ([*(load(f"a/{n}", 20, 2020) for n in range(5)), load("b/x", 50)], "a/2 a/3 a/4"),
        ([*(load(f"a/{n}", 20, 2020) for n in range(5)), load("b/x", 20)], "a/4"),
        ([load("hub/x", 40), *(load(f"{n}/{m}", 10, 2020) for n in "abc" for m in range(3))], "a/2 b/2 c/2"),
        ([load("hub/a", 60, 2020, {"s": 30 * KIB}), load("hub/b", 5, 2021, {"s": 30 * KIB})], ""),
        ([load("hub/a", 60, 2020, {"s": 30 * KIB}), load("hub/b", 5, 2021, {"t": 30 * KIB})], "hub/b"),
    ],
)
def test_full_manifestwork_excludes_newest_scorers_over_their_share(loads: list[Load], excluded: str) -> None:
    reasons = dict(find_excluded(loads, "hub", LIMIT))
    assert " ".join(sorted(reasons)) == excluded
    assert all(reason.startswith("no room: a cluster's ManifestWork holds 104 KiB") for reason in reasons.values())
    # The order of the list does not matter.
    assert dict(find_excluded(reversed(loads), "hub", LIMIT)) == reasons
    assert not excluded or not all_fit(loads, LIMIT)


def test_tenant_adding_scorers_displaces_no_other_namespace() -> None:
    other = [load(f"other/{number}", 10, 2026) for number in range(4)]
    for number in (1, 10, 1000):
        reasons = dict(find_excluded([*(load(f"tenant/{n}", 10, 2020) for n in range(number)), *other], "hub", LIMIT))
        assert not [key for key in reasons if key.startswith("other/")]


@pytest.mark.parametrize("query", ['up{a="b\\\\d"} > 0 and x < 1 & y', "é€😀", "x" * 5000])
def test_planned_size_of_a_scorer_covers_its_manifests(query: str) -> None:
    source = {**SOURCE, "params": {"query": query, "range": 60, "step": 15}}

    def plan_of(*names: str) -> FleetPlan:
        scorers = [scorer(name, source=source) for name in names]
        return make_plan(scorers, config(), [cluster("c")], NOW, authentications=[authentication()])

    def workload_size(plan: FleetPlan) -> int:
        parts = [scorer_plan.get_part("c") for scorer_plan in plan.list_running_scorers("c")]
        work = make_manifest_work("c", "agents", parts, secrets=[make_copy("agents", secret())])
        text = json.dumps(work["spec"]["workload"]["manifests"], separators=(",", ":"), ensure_ascii=False)
        # Go escapes these characters.
        for character in "<>&":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return len(text.encode())

    planned = sum(scorer_plan.make_load("c").size for scorer_plan in plan_of("a", "b").scorers.values())
    secret_size = compute_size(make_copy("agents", secret()))
    shared_size = workload_size(plan_of("a", "b")) - planned - secret_size
    # Objects that all scorers share count once, not once per scorer.
    assert 0 < shared_size < 2 * KIB
    assert workload_size(plan_of("a", "b", "c", "d")) - workload_size(plan_of("a", "b")) <= planned


@pytest.mark.parametrize(
    ("refusal", "limit"),
    [
        ("admission webhook denied: the size of manifests is 900000 bytes which exceeds the 512000 limit", 512_000),
        ("the size of manifests is 900000 bytes which exceeds the 2048000 limit", 786_432),
        ("422: Request entity too large: limit is 3145728", 786_432),
        ("etcdserver: request is too large", 786_432),
        ("the size of manifests is 900000 bytes which exceeds the 10 limit", None),
        ("manifestworks is forbidden: exceeded quota", None),
    ],
)
def test_size_limit_is_learned_from_the_refusal(refusal: str, limit: int | None) -> None:
    assert lower_limit(1024 * KIB, refusal) == limit
