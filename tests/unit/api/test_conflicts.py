from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dsf.api.conflicts import NameClaim, find_conflicts

OLD = datetime(2026, 1, 1, tzinfo=UTC)
NEW = OLD + timedelta(days=1)


def claim(name: str, score: str, created: datetime | None = OLD, namespace: str = "ns") -> NameClaim:
    return NameClaim(name, namespace, created, score)


def test_different_names_do_not_conflict() -> None:
    assert find_conflicts([claim("a", "x"), claim("b", "y")]) == {}


def test_the_older_one_keeps_the_score_name() -> None:
    assert find_conflicts([claim("a", "x", NEW), claim("b", "x", OLD)]) == {
        "ns/a": "score name 'x' belongs to ns/b, which had it first"
    }


def test_of_one_age_the_one_that_sorts_first_keeps_it() -> None:
    assert find_conflicts([claim("b", "x"), claim("a", "x")]) == {
        "ns/b": "score name 'x' belongs to ns/a, which had it first"
    }


def test_one_that_is_not_stored_yet_is_the_youngest() -> None:
    assert list(find_conflicts([claim("a", "x", None), claim("b", "x", NEW)])) == ["ns/a"]


def test_two_score_names_with_one_object_name() -> None:
    assert find_conflicts([claim("a", "my_score"), claim("b", "My Score", NEW)]) == {
        "ns/b": "score name 'My Score' becomes the object name 'my-score', which belongs to 'my_score' of ns/a, "
        "which had it first"
    }


def test_names_of_which_nothing_is_left_do_not_conflict() -> None:
    assert find_conflicts([claim("a", "é"), claim("b", "日本"), claim("c", "___")]) == {}


def test_one_scorer_name_in_two_namespaces() -> None:
    assert find_conflicts([claim("a", "x"), claim("a", "y", NEW, "other")]) == {
        "other/a": "scorer name 'a' belongs to ns/a, which had it first"
    }


def test_one_that_lost_claims_nothing() -> None:
    claims = [claim("a", "x"), claim("b", "x", NEW), claim("b", "y", NEW + timedelta(days=1), "other")]
    assert list(find_conflicts(claims)) == ["ns/b"]


CLAIMS = st.lists(
    st.builds(
        claim, st.sampled_from("abcd"), st.sampled_from(["x", "X", "y", "y_"]), st.sampled_from([OLD, NEW, None])
    ),
    unique_by=lambda found: found.key,
)


@given(CLAIMS, st.randoms())
def test_the_order_of_the_claims_does_not_matter(claims: list[NameClaim], random: Random) -> None:
    shuffled = list(claims)
    random.shuffle(shuffled)
    assert find_conflicts(shuffled) == find_conflicts(claims)
