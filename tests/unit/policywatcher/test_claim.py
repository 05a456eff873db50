"""The rule by which the claim gets its value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policywatcher.claim import Compliance, State

EMPTY, BAD, GOOD = Compliance.EMPTY, Compliance.NONCOMPLIANT, Compliance.COMPLIANT
STABLE = 120.0


def after(*looks: tuple[float, Compliance]) -> State:
    state = State(STABLE)
    for at, seen in looks:
        state = state.observe(seen, at, at)
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


def test_one_look_is_enough_without_a_stable_time() -> None:
    assert State(0).observe(GOOD, 7, 8).wanted("empty") == GOOD


def test_an_interruption_starts_the_time_anew() -> None:
    state = after((0, GOOD), (100, GOOD), (110, BAD), (115, GOOD), (234, GOOD))
    assert state.wanted("noncompliant") is None
    assert state.observe(GOOD, 235, 235).wanted("noncompliant") == GOOD


def test_a_slow_api_server_does_not_shorten_the_stable_time() -> None:
    state = State(STABLE).observe(GOOD, 0, 50).observe(GOOD, 169, 200)
    assert state.wanted("empty") is None
    assert state.observe(GOOD, 170, 300).wanted("empty") == GOOD


def test_nothing_is_written_when_the_claim_is_right() -> None:
    assert after((0, EMPTY)).wanted("empty") is None
    assert after((0, BAD)).wanted("noncompliant") is None
    assert after((0, GOOD), (120, GOOD)).wanted("compliant") is None


def test_a_restart_while_compliant_keeps_the_claim() -> None:
    assert after((1000, GOOD)).wanted("compliant") is None


def test_a_claim_that_could_not_be_withdrawn_is_withdrawn_later() -> None:
    # The policies were violated and are complied with again, and all the while the claim could not be written.
    assert after((0, GOOD), (120, GOOD), (130, BAD), (140, GOOD)).wanted("compliant") == BAD
    assert after((0, GOOD), (120, GOOD), (130, BAD), (140, GOOD), (260, GOOD)).wanted("compliant") is None


def test_after_an_interruption_is_over_a_claim_is_trusted_again() -> None:
    state = after((0, BAD), (10, GOOD), (130, GOOD))
    assert not state.interrupted
    assert state.wanted(None) == GOOD


@pytest.mark.parametrize("claim", [None, "", "something else"])
def test_a_claim_that_is_missing_while_it_is_not_certain_is_noncompliant(claim: str | None) -> None:
    assert after((0, GOOD)).wanted(claim) == BAD


def test_nothing_is_known_before_the_first_look() -> None:
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
    looks: list[tuple[float, Compliance]] = []
    for passed, seen, changed, writes in steps:
        now += passed
        if changed is not None:
            claim = changed or None
        if seen is None:
            continue
        looks.append((now, seen))
        state = state.observe(seen, now, now)
        value = state.wanted(claim)
        lasting = lasted(looks)
        if seen is not GOOD:
            assert value == (None if claim == seen else seen)
        elif lasting >= STABLE:
            assert value == (None if claim == GOOD else GOOD)
        else:
            assert value in (None, BAD)
            if claim in (EMPTY, BAD):
                assert value is None
            if claim == GOOD:
                # It may stay only if nothing but compliance was seen since it was certain, or since the start.
                interrupted = any(one is not GOOD for _, one in looks)
                assert value == (BAD if interrupted else None)
        assert value is None or value != claim
        if value is not None and writes:
            claim = value


def lasted(looks: list[tuple[float, Compliance]]) -> float:
    """Seconds between the first and the last look of the compliance that ends the list."""
    first = looks[-1][0]
    for at, seen in reversed(looks):
        if seen is not GOOD:
            break
        first = at
    return looks[-1][0] - first
