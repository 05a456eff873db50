"""The rule by which the claim gets its value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policywatcher.claim import Compliance, Look, State

EMPTY, BAD, GOOD = Compliance.EMPTY, Compliance.NONCOMPLIANT, Compliance.COMPLIANT
STABLE = 120.0


def look(seen: Compliance, *policies: tuple[str, int]) -> Look:
    return Look(seen, frozenset(policies or [("uid", 1)]) if seen is GOOD else frozenset())


def after(*looks: tuple[float, Compliance]) -> State:
    state = State(STABLE)
    for at, seen in looks:
        state = state.observe(look(seen), at, at)
    return state


@pytest.mark.parametrize("seen", [EMPTY, BAD])
@pytest.mark.parametrize("claim", [None, "", "compliant", "something else"])
def test_empty_and_noncompliant_are_said_at_once(seen: Compliance, claim: str | None) -> None:
    assert after((0, seen)).wanted(claim) == seen
    assert after((0, GOOD), (500, GOOD), (501, seen)).wanted(claim) == seen


@pytest.mark.parametrize("claim", ["empty", "noncompliant"])
def test_compliant_is_said_only_after_the_stable_time(claim: str) -> None:
    assert after((0, GOOD), (119.9, GOOD)).wanted(claim) is None
    assert after((0, GOOD), (120, GOOD)).wanted(claim) == GOOD


def test_single_observation_is_enough_without_a_stable_time() -> None:
    assert State(0).observe(look(GOOD), 7, 8).wanted("empty") == GOOD


def test_an_interruption_starts_the_time_anew() -> None:
    state = after((0, GOOD), (100, GOOD), (110, BAD), (115, GOOD), (234, GOOD))
    assert state.wanted("noncompliant") is None
    assert state.observe(look(GOOD), 235, 235).wanted("noncompliant") == GOOD


@pytest.mark.parametrize("swapped", [("new", 1), ("uid", 2)])
def test_swapped_policy_restarts_the_stable_time(swapped: tuple[str, int]) -> None:
    """Another policy, or another spec of it: the old one's time says nothing of it."""
    before = after((0, GOOD), (119, GOOD))
    state = before.observe(look(GOOD, swapped), 120, 120)
    assert state.wanted("empty") is None
    assert state.observe(look(GOOD, swapped), 239, 239).wanted("empty") is None
    assert state.observe(look(GOOD, swapped), 240, 240).wanted("empty") == GOOD
    # A claim that was right of the old one is not of the new one.
    assert after((0, GOOD), (130, GOOD)).observe(look(GOOD, swapped), 140, 140).wanted("compliant") == BAD


def test_removed_policy_keeps_the_time_of_the_others() -> None:
    state = State(STABLE).observe(look(GOOD, ("a", 1), ("b", 1)), 0, 0).observe(look(GOOD, ("a", 1)), 120, 120)
    assert state.wanted("empty") == GOOD


def test_failed_observations_restart_the_stable_time() -> None:
    state = after((0, GOOD), (60, GOOD)).missed().observe(look(GOOD), 120, 120)
    assert state.wanted("empty") is None
    assert state.observe(look(GOOD), 240, 240).wanted("empty") == GOOD
    # That is no reason to move workloads away.
    assert after((0, GOOD), (120, GOOD)).missed().observe(look(GOOD), 500, 500).wanted("compliant") is None


def test_slow_api_server_does_not_shorten_the_stable_time() -> None:
    state = State(STABLE).observe(look(GOOD), 0, 50).observe(look(GOOD), 169, 200)
    assert state.wanted("empty") is None
    assert state.observe(look(GOOD), 170, 300).wanted("empty") == GOOD


def test_correct_claim_is_not_rewritten() -> None:
    assert after((0, EMPTY)).wanted("empty") is None
    assert after((0, BAD)).wanted("noncompliant") is None
    assert after((0, GOOD), (120, GOOD)).wanted("compliant") is None


def test_restart_while_compliant_keeps_the_claim() -> None:
    assert after((1000, GOOD)).wanted("compliant") is None


def test_failed_withdrawal_of_a_claim_is_repeated() -> None:
    # The policies were violated and are complied with again, and all the while the claim could not be written.
    assert after((0, GOOD), (120, GOOD), (130, BAD), (140, GOOD)).wanted("compliant") == BAD
    assert after((0, GOOD), (120, GOOD), (130, BAD), (140, GOOD), (260, GOOD)).wanted("compliant") is None


def test_after_an_interruption_is_over_a_claim_is_trusted_again() -> None:
    state = after((0, BAD), (10, GOOD), (130, GOOD))
    assert not state.interrupted
    assert state.wanted(None) == GOOD


@pytest.mark.parametrize("claim", [None, "", "something else"])
def test_missing_or_unknown_claim_is_noncompliant_while_uncertain(claim: str | None) -> None:
    assert after((0, GOOD)).wanted(claim) == BAD


def test_claim_is_undecided_before_the_first_observation() -> None:
    assert State(STABLE).wanted(None) is None


#: One thing that happens: seconds later, a look finds this (None: it fails), somebody sets the claim (None: nobody
#: does, empty: it is deleted), and the watcher's own write succeeds or not.
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
def test_whatever_happens(steps: list[Step], claim: str | None) -> None:
    """Held against the looks themselves, not against the state."""
    state, now = State(STABLE), 0.0
    looks: list[tuple[float, Compliance | None]] = []
    # What was seen since compliance was certain, or since the start.
    since_certain: list[Compliance] = []
    for passed, seen, changed, writes in steps:
        now += passed
        if changed is not None:
            claim = changed or None
        looks.append((now, seen))
        if seen is None:
            state = state.missed()
            continue
        since_certain.append(seen)
        state = state.observe(look(seen), now, now)
        value = state.wanted(claim)
        lasting = lasted(looks)
        if seen is not GOOD:
            assert value == (None if claim == seen else seen)
        elif lasting >= STABLE:
            since_certain.clear()
            assert value == (None if claim == GOOD else GOOD)
        else:
            assert value in (None, BAD)
            if claim in (EMPTY, BAD):
                assert value is None
            if claim == GOOD:
                # It may stay only if nothing but compliance was seen.
                assert value == (BAD if any(one is not GOOD for one in since_certain) else None)
        assert value is None or value != claim
        if value is not None and writes:
            claim = value


def lasted(looks: list[tuple[float, Compliance | None]]) -> float:
    """Seconds between the first and the last look of the compliance that ends the list."""
    first = looks[-1][0]
    for at, seen in reversed(looks):
        if seen is not GOOD:
            break
        first = at
    return looks[-1][0] - first
