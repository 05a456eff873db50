"""Holders of names after every order of creation, claim, change, deletion and re-creation."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dsf.api.nameclaims import (
    RESERVATION_SECONDS,
    ROOM_OF_NAMESPACE,
    NameClaim,
    NameClaims,
    Wish,
    explain_refusal,
    find_former_owners,
    settle,
)

HOME = "hub"
OLD = datetime(2026, 1, 1, tzinfo=UTC)
NEW = OLD + timedelta(days=1)
AT = 1_800_000_000


def holders(*wishes: Wish, before: dict[str, tuple[NameClaim, ...]] | None = None, now: int = AT) -> dict[str, str]:
    return {name: queue[0].owner for name, queue in settle(before or {}, wishes, now, HOME).items()}


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        (Wish("hub/a", "x", NEW), Wish("hub/b", "x", OLD), "hub/b"),
        (Wish("hub/b", "x", OLD), Wish("hub/a", "x", OLD), "hub/a"),
        (Wish("hub/a", "x", None), Wish("hub/b", "x", NEW), "hub/b"),
        (Wish("team/a", "x", OLD), Wish("hub/b", "x", NEW), "hub/b"),
        (Wish("team/a", "x", NEW), Wish("other/b", "x", OLD), "other/b"),
    ],
)
def test_first_claims_are_settled_by_namespace_and_age(first: Wish, second: Wish, winner: str) -> None:
    assert holders(first, second) == holders(second, first) == {"x": winner}


class CountedName(str):
    """A name that counts its comparisons."""

    __slots__ = ()
    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)


def test_deleted_scorers_are_settled_in_linear_time() -> None:
    """A tenant deletes its scorers and creates others, so that each name of a deleted one waits for its re-creation."""
    count = 300
    before = settle({}, [Wish(f"team/old{number}", f"old-{number}", OLD) for number in range(count)], AT, HOME)
    wishes = [Wish(f"team/new{number}", CountedName(f"new-{number}"), NEW) for number in range(count)]
    CountedName.comparisons = 0
    queues = settle(before, wishes, AT + 10, HOME)
    assert len(queues) == 2 * count
    assert CountedName.comparisons < 20 * count


@pytest.mark.parametrize("attacker", ["hub/attacker", "team/attacker"])
@pytest.mark.parametrize("former_name", ["y", None, ""], ids=["of-another-name", "unresolved", "without-a-name"])
def test_older_scorer_does_not_take_over_a_claimed_name(attacker: str, former_name: str | None) -> None:
    victim = Wish("hub/victim", "x", NEW)
    before = settle({}, [victim, Wish(attacker, former_name, OLD)], AT, HOME)
    changed = [victim, Wish(attacker, "x", OLD)]
    after = settle(before, changed, AT + 10, HOME)
    assert after["x"] == (NameClaim("hub/victim", AT), NameClaim(attacker, AT + 10))
    # An unresolvable holder keeps its name too: its author may have made a mistake.
    after = settle(after, [Wish("hub/victim", None, NEW), Wish(attacker, "x", OLD)], AT + 20, HOME)
    assert after["x"][0] == NameClaim("hub/victim", AT)


@pytest.mark.parametrize("attacker", ["hub/attacker", "team/attacker"])
def test_deleted_holder_regains_its_name_within_the_retention(attacker: str) -> None:
    waits = Wish(attacker, "x", OLD)
    before = settle({}, [Wish("hub/victim", "x", NEW)], AT, HOME)
    before = settle(before, [Wish("hub/victim", "x", NEW), waits], AT + 1, HOME)
    deleted = settle(before, [waits], AT + 10, HOME)
    assert deleted["x"] == (NameClaim("hub/victim", AT, AT + 10), NameClaim(attacker, AT + 1))
    for seconds in (0, 1, RESERVATION_SECONDS - 1):
        later = settle(deleted, [waits], AT + 10 + seconds, HOME)
        # An unresolved scorer, as in mode Full before its first /config.
        later = settle(later, [Wish("hub/victim", None, None), waits], AT + 10 + seconds, HOME)
        later = settle(later, [Wish("hub/victim", "x", None), waits], AT + 2 * RESERVATION_SECONDS, HOME)
        assert later["x"][0] == NameClaim("hub/victim", AT)
    assert settle(deleted, [waits], AT + 10 + RESERVATION_SECONDS, HOME)["x"] == (NameClaim(attacker, AT + 1),)


@pytest.mark.parametrize("seconds", [-1, 0, 30], ids=["created-before", "at-once", "created-after"])
def test_rename_takes_over_the_name_before_older_scorers(seconds: int) -> None:
    attacker = Wish("hub/attacker", "x", OLD)
    created = datetime.fromtimestamp(AT + 10 + seconds, UTC)
    renamed, stranger = Wish("hub/renamed", "x", created), Wish("team/stranger", "x", created)
    queues = settle({}, [Wish("hub/victim", "x", NEW)], AT, HOME)
    queues = settle(queues, [Wish("hub/victim", "x", NEW), attacker], AT + 1, HOME)
    if seconds < 0:
        queues = settle(queues, [Wish("hub/victim", "x", NEW), attacker, renamed], AT + 9, HOME)
    queues = settle(queues, [attacker, stranger], AT + 10, HOME)
    assert queues["x"][0].owner == "hub/victim"
    queues = settle(queues, [attacker, stranger, renamed], AT + 40, HOME)
    assert queues["x"][0].renamed_from == "hub/victim"
    assert [claim.owner for claim in queues["x"]] == ["hub/renamed", "hub/attacker", "team/stranger"]
    # The old scorer is re-created after its name was taken over.
    queues = settle(queues, [attacker, renamed, Wish("hub/victim", "x", NEW)], AT + 50, HOME)
    assert queues["x"][0].owner == "hub/renamed"


def test_released_name_is_given_to_the_longest_waiting_scorer() -> None:
    everyone = [Wish("hub/a", "x", NEW)]
    queues = settle({}, everyone, AT, HOME)
    for number, owner in enumerate(["team/b", "hub/d", "hub/c"], start=1):
        everyone.append(Wish(owner, "x", OLD))
        queues = settle(queues, everyone, AT + number, HOME)
    everyone[0] = Wish("hub/a", "y", NEW)
    queues = settle(queues, everyone, AT + 9, HOME)
    assert [claim.owner for claim in queues["x"]] == ["hub/d", "hub/c", "team/b"]
    # A scorer that returns is the last of its namespace.
    everyone[0] = Wish("hub/a", "x", NEW)
    queues = settle(queues, everyone, AT + 10, HOME)
    assert [claim.owner for claim in queues["x"]] == ["hub/d", "hub/c", "hub/a", "team/b"]
    assert "y" not in queues


def test_two_scorers_swap_their_names() -> None:
    before = settle({}, [Wish("hub/a", "x"), Wish("hub/b", "y")], AT, HOME)
    assert holders(Wish("hub/a", "y"), Wish("hub/b", "x"), before=before) == {"y": "hub/a", "x": "hub/b"}


def test_clock_that_was_ahead_does_not_extend_a_retention() -> None:
    before = {"x": (NameClaim("hub/a", AT, AT + 10_000), NameClaim("hub/b", AT))}
    claims_after = settle(before, [Wish("hub/b", "x", OLD)], AT, HOME)
    assert claims_after["x"][0] == NameClaim("hub/a", AT, AT)
    assert settle(claims_after, [Wish("hub/b", "x", OLD)], AT + RESERVATION_SECONDS, HOME)["x"] == (
        NameClaim("hub/b", AT),
    )


@pytest.mark.parametrize("greedy", ["team", HOME])
def test_names_of_one_namespace_leave_room_for_those_of_others(greedy: str) -> None:
    many = [Wish(f"{greedy}/{number}", f"{number:0>250}", OLD) for number in range(3000)]
    other_wishes = [Wish("other/a", "x", NEW), Wish("third/a", "y", NEW)]
    queues = settle({}, [*many, *other_wishes], AT, HOME)
    assert queues["x"] == (NameClaim("other/a", AT),)
    claims = NameClaims(scores=queues)
    assert ROOM_OF_NAMESPACE / 2 < len(claims.dump(greedy)) < ROOM_OF_NAMESPACE + 100
    assert len(claims.dump("other")) < 100
    left_out = next(wish for wish in many if wish.name not in queues)
    assert explain_refusal("score name", (), left_out.owner) == (
        f"score name cannot be claimed: namespace {greedy} has too many scorers, or too long names"
    )
    # Holders keep their names, and a later scorer of another namespace gets a name.
    after = settle(queues, [*many, *other_wishes, Wish("fourth/a", "z", NEW)], AT + 1, HOME)
    assert after == queues | {"z": (NameClaim("fourth/a", AT + 1),)}
    # Names of deleted scorers count for their namespace, too.
    churned = [Wish(f"{greedy}/new-{number}", f"new{number:0>250}", NEW) for number in range(3000)]
    former = find_former_owners(queues, {}, churned, AT + 2)
    claims = NameClaims(scores=settle(queues, [*churned, *other_wishes], AT + 2, HOME, former), former=former)
    assert len(claims.dump(greedy)) < 2 * ROOM_OF_NAMESPACE


def settle_claims(claims: NameClaims, wishes: list[Wish], now: int) -> NameClaims:
    """Settle score claims after `claims`, as the hub stores them."""
    former = find_former_owners(claims.scores, claims.former, wishes, now)
    after = NameClaims(scores=settle(claims.scores, wishes, now, HOME, former), former=former)
    namespaces = {wish.owner.partition("/")[0] for wish in wishes} | {"hub"}
    return NameClaims.parse({namespace: after.dump(namespace) for namespace in namespaces})


def created(at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC)


#: Owner -> score name, and the `/config` that says it. The first one of each name holds it.
TENANTS = {
    "hub/a": ("x", ""),
    "hub/b": ("x", "config-of-b"),
    "hub/c": ("x", ""),
    "hub/d": ("y", "config-of-d"),
    "hub/e": ("y", ""),
}


@pytest.mark.parametrize("step", [0, 2, 25], ids="{}s".format)
@pytest.mark.parametrize("is_young", [True, False], ids=["young", "old"])
@pytest.mark.parametrize("is_resolved", [True, False], ids=["at-once", "after-its-config"])
def test_scores_keep_their_owners_in_every_order_of_recreation(step: int, is_young: bool, is_resolved: bool) -> None:
    owners = list(TENANTS)
    for position, order in enumerate(itertools.permutations(owners)):
        now = AT
        claims = NameClaims()
        wishes: dict[str, Wish] = {}
        for owner, (name, config) in TENANTS.items():
            wishes[owner] = Wish(owner, name, created(now) if is_young else OLD, config)
            claims = settle_claims(claims, [*wishes.values()], now)
        running = {name: queue[0].owner for name, queue in claims.scores.items()}
        assert running == {"x": "hub/a", "y": "hub/d"}
        now += 100
        # The scorers are deleted together, or one by one in another order.
        for owner in [] if position % 2 else Random(position).sample(owners, len(owners)):
            del wishes[owner]
            claims = settle_claims(claims, [*wishes.values()], now)
            now += step
        wishes = {}
        if position % 3:
            claims = settle_claims(claims, [], now)
        for owner in order:
            name, config = TENANTS[owner]
            if not is_resolved:
                wishes[owner] = Wish(owner, None, created(now), config)
                claims = settle_claims(claims, [*wishes.values()], now)
            wishes[owner] = Wish(owner, name, created(now), config)
            claims = settle_claims(claims, [*wishes.values()], now)
            now += step
        for seconds in (0, 2 * RESERVATION_SECONDS):
            claims = settle_claims(claims, [*wishes.values()], now + seconds)
            assert {name: queue[0].owner for name, queue in claims.scores.items()} == running, order


@pytest.mark.parametrize(
    ("config", "is_rename"), [("", True), ("of-victim", True), ("other", False)], ids=["spec", "same-config", "config"]
)
def test_rename_needs_the_score_name_in_the_spec_or_the_same_config(config: str, is_rename: bool) -> None:
    claims = settle_claims(NameClaims(), [Wish("hub/victim", "x", OLD, "of-victim")], AT)
    claims = settle_claims(claims, [], AT + 10)
    new = Wish("hub/new", "x", created(AT + 12), config)
    claims = settle_claims(claims, [new], AT + 12)
    assert (claims.scores["x"][0].owner == "hub/new") is is_rename
    claims = settle_claims(claims, [new], AT + 11 + RESERVATION_SECONDS)
    assert claims.scores["x"][0].owner == "hub/new"


@pytest.mark.parametrize("earlier", ["y", "x"], ids=["held-another-name", "waited-for-it"])
@pytest.mark.parametrize("pause", [0, 2, 299])
def test_scorer_with_an_earlier_claim_is_no_renamed_one(earlier: str, pause: int) -> None:
    victim, other = Wish("hub/victim", "x", OLD), Wish("hub/other", earlier, created(AT))
    claims = settle_claims(NameClaims(), [victim, other], AT)
    claims = settle_claims(claims, [victim], AT + 10)
    claims = settle_claims(claims, [], AT + 10)
    other = Wish("hub/other", "x", created(AT + 10 + pause))
    for seconds in (0, RESERVATION_SECONDS - pause - 1):
        claims = settle_claims(claims, [other], AT + 10 + pause + seconds)
        assert claims.scores["x"][0].owner == "hub/victim"
    assert settle_claims(claims, [other], AT + 10 + RESERVATION_SECONDS).scores["x"][0].owner == "hub/other"


def test_renamed_and_replaced_scorer_keeps_its_name() -> None:
    claims = settle_claims(NameClaims(), [Wish("hub/old", "x", OLD)], AT)
    claims = settle_claims(claims, [Wish("hub/new", "x", created(AT + 1))], AT + 1)
    assert claims.scores["x"][0].owner == "hub/new"
    later = AT + 10 * RESERVATION_SECONDS
    claims = settle_claims(claims, [], later)
    claims = settle_claims(claims, [Wish("hub/old", "x", created(later + 1))], later + 1)
    claims = settle_claims(claims, [Wish("hub/new", "x", created(later + 2))], later + 2)
    assert claims.scores["x"][0].owner == "hub/new"


def test_claims_interrupted_between_two_namespaces_have_one_holder() -> None:
    both = {name: NameClaims(scores={"x": (NameClaim(f"{name}/a", AT),)}).dump(name) for name in ("one", "two")}
    assert [claim.owner for claim in NameClaims.parse(both).scores["x"]] == ["one/a", "two/a"]
    waiting = NameClaims(scores={"x": (NameClaim("one/a", AT), NameClaim("two/a", AT), NameClaim("two/b", AT - 1))})
    assert NameClaims.parse({"two": waiting.dump("two")}).scores["x"][0].owner == "two/b"


def test_refusal_names_the_holder_and_the_retention() -> None:
    queue = (NameClaim("hub/a", 1_700_000_000), NameClaim("hub/b", AT))
    assert explain_refusal("score name 'x'", queue, "hub/a") == ""
    assert explain_refusal("score name 'x'", queue, "hub/b") == (
        "score name 'x' belongs to hub/a, which holds it since 2023-11-14T22:13:20Z"
    )
    queue = (NameClaim("hub/a", AT, 1_700_000_000), NameClaim("hub/b", AT))
    assert explain_refusal("score name 'x'", queue, "hub/b") == (
        "score name 'x' is kept until 2023-11-14T22:18:20Z for hub/a, which was deleted: it may be re-created"
    )


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"scores":{"x":[1]}}', '{"scores":{"x":[["a","b"]]}}', "7", '{"former":{"a":"b"}}']
)
def test_stored_claims_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        NameClaims.parse({"hub": text})


def test_no_claims_are_stored_yet() -> None:
    assert NameClaims.parse({"hub": ""}) == NameClaims()


WISHES = st.lists(
    st.builds(
        Wish,
        st.sampled_from(["hub/a", "hub/b", "team/a", "team/b"]),
        st.sampled_from(["x", "y", "", None]),
        st.sampled_from([OLD, NEW, None]),
    ),
    unique_by=lambda wish: wish.owner,
)


@given(WISHES, WISHES, st.randoms())
def test_claims_do_not_depend_on_the_order_of_wishes(before: list[Wish], after: list[Wish], random: Random) -> None:
    queues = settle({}, before, AT, HOME)
    shuffled = list(after)
    random.shuffle(shuffled)
    assert settle(queues, shuffled, AT + 5, HOME) == settle(queues, after, AT + 5, HOME)


class Names(RuleBasedStateMachine):
    """In any history, a holder changes only if it gave the name up."""

    def __init__(self) -> None:
        super().__init__()
        self.now = AT
        self.wishes: dict[str, Wish] = {}
        self.queues: dict[str, tuple[NameClaim, ...]] = {}
        # A scorer without creation time counts as the newest.
        self.ages = itertools.cycle([OLD, NEW, None])

    def settle(self) -> None:
        before, self.queues = self.queues, settle(self.queues, self.wishes.values(), self.now, HOME)
        for name, queue in before.items():
            holder = queue[0]
            wish = self.wishes.get(holder.owner)
            gave_up = wish is not None and wish.name not in (name, None)
            is_forgotten = wish is None and holder.gone_at and self.now >= holder.gone_at + RESERVATION_SECONDS
            is_renamed = wish is None and any(
                other.name == name
                and other.owner.partition("/")[0] == holder.owner.partition("/")[0]
                and other.created is None
                for other in self.wishes.values()
            )
            if gave_up or is_forgotten or is_renamed:
                continue
            assert self.queues[name][0].owner == holder.owner
            assert self.queues[name][0].since == holder.claimed_at

    @rule(
        owner=st.sampled_from(["hub/a", "hub/b", "team/a", "team/b"]),
        name=st.sampled_from(["x", "y", None, ""]),
    )
    def create_or_change(self, owner: str, name: str | None) -> None:
        earlier_wish = self.wishes.get(owner)
        self.wishes[owner] = Wish(owner, name, earlier_wish.created if earlier_wish else next(self.ages))
        self.settle()

    @precondition(lambda self: self.wishes)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        del self.wishes[data.draw(st.sampled_from(sorted(self.wishes)))]
        self.settle()

    @rule(seconds=st.sampled_from([0, 1, RESERVATION_SECONDS - 1, RESERVATION_SECONDS, 10 * RESERVATION_SECONDS]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.settle()

    @rule()
    def restart(self) -> None:
        claims = NameClaims(scores=self.queues)
        self.queues = dict(NameClaims.parse({name: claims.dump(name) for name in ("hub", "team")}).scores)
        self.settle()

    @invariant()
    def each_scorer_has_at_most_the_claim_that_it_wants(self) -> None:
        claims = [(claim.owner, name) for name, queue in self.queues.items() for claim in queue]
        assert len({owner for owner, _ in claims}) == len(claims)
        for owner, wish in self.wishes.items():
            if wish.name:
                assert (owner, wish.name) in claims

    @invariant()
    def of_those_that_wait_the_hubs_namespace_comes_first(self) -> None:
        for _, *waiting in self.queues.values():
            order = [(not claim.owner.startswith("hub/"), claim.claimed_at) for claim in waiting]
            assert order == sorted(order)


Names.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestNames = Names.TestCase
