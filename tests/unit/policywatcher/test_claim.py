"""The rule by which the claim gets its value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policywatcher.claim import Compliance, PollResult, State

EMPTY, BAD, GOOD = Compliance.EMPTY, Compliance.NONCOMPLIANT, Compliance.COMPLIANT
STABLE = 120.0


def observation(compliance: Compliance, *policies: tuple[str, int]) -> PollResult:
    return PollResult(compliance, frozenset(policies or [("uid", 1)]) if compliance is GOOD else frozenset())


def observe_all(*poll_results: tuple[float, Compliance]) -> State:
    state = State(STABLE)
    for at, compliance in poll_results:
        state = state.observe(observation(compliance), at, at)
    return state


@pytest.mark.parametrize("compliance", [EMPTY, BAD])
@pytest.mark.parametrize("claim", [None, "", "compliant", "something else"])
def test_empty_and_noncompliant_are_published_immediately(compliance: Compliance, claim: str | None) -> None:
    assert observe_all((0, compliance)).next_claim(claim) == compliance
    assert observe_all((0, GOOD), (500, GOOD), (501, compliance)).next_claim(claim) == compliance


@pytest.mark.parametrize("claim", ["empty", "noncompliant"])
def test_compliant_is_published_only_after_the_stable_time(claim: str) -> None:
    assert observe_all((0, GOOD), (119.9, GOOD)).next_claim(claim) is None
    assert observe_all((0, GOOD), (120, GOOD)).next_claim(claim) == GOOD


def test_single_observation_is_enough_without_a_stable_time() -> None:
    assert State(0).observe(observation(GOOD), 7, 8).next_claim("empty") == GOOD


def test_interruption_restarts_the_waiting_time() -> None:
    state = observe_all((0, GOOD), (100, GOOD), (110, BAD), (115, GOOD), (234, GOOD))
    assert state.next_claim("noncompliant") is None
    assert state.observe(observation(GOOD), 235, 235).next_claim("noncompliant") == GOOD


@pytest.mark.parametrize("swapped", [("new", 1), ("uid", 2)])
def test_swapped_policy_restarts_the_stable_time(swapped: tuple[str, int]) -> None:
    """The waiting time restarts for another policy, or for another spec of the same policy."""
    before = observe_all((0, GOOD), (119, GOOD))
    state = before.observe(observation(GOOD, swapped), 120, 120)
    assert state.next_claim("empty") is None
    assert state.observe(observation(GOOD, swapped), 239, 239).next_claim("empty") is None
    assert state.observe(observation(GOOD, swapped), 240, 240).next_claim("empty") == GOOD
    # A claim that was correct for the old policy is not for the new one.
    assert (
        observe_all((0, GOOD), (130, GOOD)).observe(observation(GOOD, swapped), 140, 140).next_claim("compliant") == BAD
    )


def test_removed_policy_does_not_restart_the_stable_time() -> None:
    state = (
        State(STABLE)
        .observe(observation(GOOD, ("a", 1), ("b", 1)), 0, 0)
        .observe(observation(GOOD, ("a", 1)), 120, 120)
    )
    assert state.next_claim("empty") == GOOD


def test_failed_observations_restart_the_stable_time() -> None:
    state = observe_all((0, GOOD), (60, GOOD)).missed().observe(observation(GOOD), 120, 120)
    assert state.next_claim("empty") is None
    assert state.observe(observation(GOOD), 240, 240).next_claim("empty") == GOOD
    # An outage must not move workloads away.
    assert (
        observe_all((0, GOOD), (120, GOOD)).missed().observe(observation(GOOD), 500, 500).next_claim("compliant")
        is None
    )


def test_slow_api_server_does_not_shorten_the_stable_time() -> None:
    state = State(STABLE).observe(observation(GOOD), 0, 50).observe(observation(GOOD), 169, 200)
    assert state.next_claim("empty") is None
    assert state.observe(observation(GOOD), 170, 300).next_claim("empty") == GOOD


def test_correct_claim_is_not_rewritten() -> None:
    assert observe_all((0, EMPTY)).next_claim("empty") is None
    assert observe_all((0, BAD)).next_claim("noncompliant") is None
    assert observe_all((0, GOOD), (120, GOOD)).next_claim("compliant") is None


def test_restart_while_compliant_keeps_the_claim() -> None:
    assert observe_all((1000, GOOD)).next_claim("compliant") is None


def test_failed_withdrawal_of_a_claim_is_repeated() -> None:
    # Policies were violated and complied with again while the claim could not be written.
    assert observe_all((0, GOOD), (120, GOOD), (130, BAD), (140, GOOD)).next_claim("compliant") == BAD
    assert observe_all((0, GOOD), (120, GOOD), (130, BAD), (140, GOOD), (260, GOOD)).next_claim("compliant") is None


def test_after_an_interruption_is_over_a_claim_is_trusted_again() -> None:
    state = observe_all((0, BAD), (10, GOOD), (130, GOOD))
    assert not state.interrupted
    assert state.next_claim(None) == GOOD


@pytest.mark.parametrize("claim", [None, "", "something else"])
def test_missing_or_unknown_claim_is_noncompliant_while_uncertain(claim: str | None) -> None:
    assert observe_all((0, GOOD)).next_claim(claim) == BAD


def test_claim_is_undecided_before_the_first_observation() -> None:
    assert State(STABLE).next_claim(None) is None


#: (seconds since the previous step, compliance that the poll returns or None if it fails, claim that another client has
#: set or None for no change or "" for a deletion, True if the watcher's own write succeeds)
Step = tuple[float, Compliance | None, str | None, bool]
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from([0.5, 10.0, 30.0, 60.0, 120.0, 200.0]),
        st.sampled_from([EMPTY, BAD, GOOD, GOOD, GOOD, None]),
        st.sampled_from([None, None, None, "", "empty", "noncompliant", "compliant", "foreign"]),
        st.booleans(),
    ),
    max_size=30,
)


@given(steps=steps, claim=st.sampled_from([None, "empty", "noncompliant", "compliant"]))
def test_claim_follows_the_rule_for_any_history(steps: list[Step], claim: str | None) -> None:
    """Compares the claim with the observations, not with the state."""
    state, now = State(STABLE), 0.0
    poll_results: list[tuple[float, Compliance | None]] = []
    # Observations since compliance was certain, or since the start.
    since_certain: list[Compliance] = []
    for passed, compliance, changed, writes in steps:
        now += passed
        if changed is not None:
            claim = changed or None
        poll_results.append((now, compliance))
        if compliance is None:
            state = state.missed()
            continue
        since_certain.append(compliance)
        state = state.observe(observation(compliance), now, now)
        value = state.next_claim(claim)
        lasting = measure_compliance(poll_results)
        if compliance is not GOOD:
            assert value == (None if claim == compliance else compliance)
        elif lasting >= STABLE:
            since_certain.clear()
            assert value == (None if claim == GOOD else GOOD)
        else:
            assert value in (None, BAD)
            if claim in (EMPTY, BAD):
                assert value is None
            if claim == GOOD:
                # The claim may stay only if all observations were compliant.
                assert value == (
                    BAD if any(compliance_before is not GOOD for compliance_before in since_certain) else None
                )
        assert value is None or value != claim
        if value is not None and writes:
            claim = value


def measure_compliance(poll_results: list[tuple[float, Compliance | None]]) -> float:
    """Return the seconds between the first and the last observation of the trailing compliance."""
    first = poll_results[-1][0]
    for at, compliance in reversed(poll_results):
        if compliance is not GOOD:
            break
        first = at
    return poll_results[-1][0] - first
