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
    MAX_NAMESPACE_BYTES,
    RESERVATION_SECONDS,
    NameClaim,
    NameClaims,
    NameRequest,
    explain_refusal,
    find_former_owners,
    update_queues,
)

HOME = "hub"
OLD = datetime(2026, 1, 1, tzinfo=UTC)
NEW = OLD + timedelta(days=1)
AT = 1_800_000_000


def holders(
    *name_requests: NameRequest, before: dict[str, tuple[NameClaim, ...]] | None = None, now: int = AT
) -> dict[str, str]:
    return {name: queue[0].owner for name, queue in update_queues(before or {}, name_requests, now, HOME).items()}


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        (NameRequest("hub/a", "x", NEW), NameRequest("hub/b", "x", OLD), "hub/b"),
        (NameRequest("hub/b", "x", OLD), NameRequest("hub/a", "x", OLD), "hub/a"),
        (NameRequest("hub/a", "x", None), NameRequest("hub/b", "x", NEW), "hub/b"),
        (NameRequest("team/a", "x", OLD), NameRequest("hub/b", "x", NEW), "hub/b"),
        (NameRequest("team/a", "x", NEW), NameRequest("other/b", "x", OLD), "other/b"),
    ],
)
def test_first_claims_are_settled_by_namespace_and_age(first: NameRequest, second: NameRequest, winner: str) -> None:
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
    before = update_queues(
        {}, [NameRequest(f"team/old{number}", f"old-{number}", OLD) for number in range(count)], AT, HOME
    )
    name_requests = [NameRequest(f"team/new{number}", CountedName(f"new-{number}"), NEW) for number in range(count)]
    CountedName.comparisons = 0
    queues = update_queues(before, name_requests, AT + 10, HOME)
    assert len(queues) == 2 * count
    assert CountedName.comparisons < 20 * count


@pytest.mark.parametrize("attacker", ["hub/attacker", "team/attacker"])
@pytest.mark.parametrize("former_name", ["y", None, ""], ids=["of-another-name", "unresolved", "without-a-name"])
def test_older_scorer_does_not_take_over_a_claimed_name(attacker: str, former_name: str | None) -> None:
    victim = NameRequest("hub/victim", "x", NEW)
    before = update_queues({}, [victim, NameRequest(attacker, former_name, OLD)], AT, HOME)
    changed = [victim, NameRequest(attacker, "x", OLD)]
    after = update_queues(before, changed, AT + 10, HOME)
    assert after["x"] == (NameClaim("hub/victim", AT), NameClaim(attacker, AT + 10))
    # An unresolvable holder keeps its name too: its author may have made a mistake.
    after = update_queues(after, [NameRequest("hub/victim", None, NEW), NameRequest(attacker, "x", OLD)], AT + 20, HOME)
    assert after["x"][0] == NameClaim("hub/victim", AT)


@pytest.mark.parametrize("attacker", ["hub/attacker", "team/attacker"])
def test_deleted_holder_regains_its_name_within_the_retention(attacker: str) -> None:
    waits = NameRequest(attacker, "x", OLD)
    before = update_queues({}, [NameRequest("hub/victim", "x", NEW)], AT, HOME)
    before = update_queues(before, [NameRequest("hub/victim", "x", NEW), waits], AT + 1, HOME)
    deleted = update_queues(before, [waits], AT + 10, HOME)
    assert deleted["x"] == (NameClaim("hub/victim", AT, AT + 10), NameClaim(attacker, AT + 1))
    for seconds in (0, 1, RESERVATION_SECONDS - 1):
        later = update_queues(deleted, [waits], AT + 10 + seconds, HOME)
        # An unresolved scorer, as in mode Full before its first /config.
        later = update_queues(later, [NameRequest("hub/victim", None, None), waits], AT + 10 + seconds, HOME)
        later = update_queues(later, [NameRequest("hub/victim", "x", None), waits], AT + 2 * RESERVATION_SECONDS, HOME)
        assert later["x"][0] == NameClaim("hub/victim", AT)
    assert update_queues(deleted, [waits], AT + 10 + RESERVATION_SECONDS, HOME)["x"] == (NameClaim(attacker, AT + 1),)


@pytest.mark.parametrize("seconds", [-1, 0, 30], ids=["created-before", "at-once", "created-after"])
def test_rename_takes_over_the_name_before_older_scorers(seconds: int) -> None:
    attacker = NameRequest("hub/attacker", "x", OLD)
    created = datetime.fromtimestamp(AT + 10 + seconds, UTC)
    renamed, stranger = NameRequest("hub/renamed", "x", created), NameRequest("team/stranger", "x", created)
    queues = update_queues({}, [NameRequest("hub/victim", "x", NEW)], AT, HOME)
    queues = update_queues(queues, [NameRequest("hub/victim", "x", NEW), attacker], AT + 1, HOME)
    if seconds < 0:
        queues = update_queues(queues, [NameRequest("hub/victim", "x", NEW), attacker, renamed], AT + 9, HOME)
    queues = update_queues(queues, [attacker, stranger], AT + 10, HOME)
    assert queues["x"][0].owner == "hub/victim"
    queues = update_queues(queues, [attacker, stranger, renamed], AT + 40, HOME)
    assert queues["x"][0].renamed_from == "hub/victim"
    assert [claim.owner for claim in queues["x"]] == ["hub/renamed", "hub/attacker", "team/stranger"]
    # The old scorer is re-created after its name was taken over.
    queues = update_queues(queues, [attacker, renamed, NameRequest("hub/victim", "x", NEW)], AT + 50, HOME)
    assert queues["x"][0].owner == "hub/renamed"


def test_released_name_is_given_to_the_longest_waiting_scorer() -> None:
    everyone = [NameRequest("hub/a", "x", NEW)]
    queues = update_queues({}, everyone, AT, HOME)
    for number, owner in enumerate(["team/b", "hub/d", "hub/c"], start=1):
        everyone.append(NameRequest(owner, "x", OLD))
        queues = update_queues(queues, everyone, AT + number, HOME)
    everyone[0] = NameRequest("hub/a", "y", NEW)
    queues = update_queues(queues, everyone, AT + 9, HOME)
    assert [claim.owner for claim in queues["x"]] == ["hub/d", "hub/c", "team/b"]
    # A scorer that returns is the last of its namespace.
    everyone[0] = NameRequest("hub/a", "x", NEW)
    queues = update_queues(queues, everyone, AT + 10, HOME)
    assert [claim.owner for claim in queues["x"]] == ["hub/d", "hub/c", "hub/a", "team/b"]
    assert "y" not in queues


def test_two_scorers_swap_their_names() -> None:
    before = update_queues({}, [NameRequest("hub/a", "x"), NameRequest("hub/b", "y")], AT, HOME)
    assert holders(NameRequest("hub/a", "y"), NameRequest("hub/b", "x"), before=before) == {"y": "hub/a", "x": "hub/b"}


def test_clock_that_was_ahead_does_not_extend_a_retention() -> None:
    before = {"x": (NameClaim("hub/a", AT, AT + 10_000), NameClaim("hub/b", AT))}
    claims_after = update_queues(before, [NameRequest("hub/b", "x", OLD)], AT, HOME)
    assert claims_after["x"][0] == NameClaim("hub/a", AT, AT)
    assert update_queues(claims_after, [NameRequest("hub/b", "x", OLD)], AT + RESERVATION_SECONDS, HOME)["x"] == (
        NameClaim("hub/b", AT),
    )


@pytest.mark.parametrize("greedy", ["team", HOME])
def test_names_of_one_namespace_leave_room_for_those_of_others(greedy: str) -> None:
    many = [NameRequest(f"{greedy}/{number}", f"{number:0>250}", OLD) for number in range(3000)]
    other_requests = [NameRequest("other/a", "x", NEW), NameRequest("third/a", "y", NEW)]
    queues = update_queues({}, [*many, *other_requests], AT, HOME)
    assert queues["x"] == (NameClaim("other/a", AT),)
    claims = NameClaims(scores=queues)
    assert MAX_NAMESPACE_BYTES / 2 < len(claims.dump(greedy)) < MAX_NAMESPACE_BYTES + 100
    assert len(claims.dump("other")) < 100
    left_out = next(name_request for name_request in many if name_request.name not in queues)
    assert explain_refusal("score name", (), left_out.owner) == (
        f"score name cannot be claimed: namespace {greedy} has too many scorers, or too long names"
    )
    # Holders keep their names, and a later scorer of another namespace gets a name.
    after = update_queues(queues, [*many, *other_requests, NameRequest("fourth/a", "z", NEW)], AT + 1, HOME)
    assert after == queues | {"z": (NameClaim("fourth/a", AT + 1),)}
    # Names of deleted scorers count for their namespace, too.
    churned = [NameRequest(f"{greedy}/new-{number}", f"new{number:0>250}", NEW) for number in range(3000)]
    former = find_former_owners(queues, {}, churned, AT + 2)
    claims = NameClaims(scores=update_queues(queues, [*churned, *other_requests], AT + 2, HOME, former), former=former)
    assert len(claims.dump(greedy)) < 2 * MAX_NAMESPACE_BYTES


def settle_claims(claims: NameClaims, name_requests: list[NameRequest], now: int) -> NameClaims:
    """Settle score claims after `claims`, as the hub stores them."""
    former = find_former_owners(claims.scores, claims.former, name_requests, now)
    after = NameClaims(scores=update_queues(claims.scores, name_requests, now, HOME, former), former=former)
    namespaces = {name_request.owner.partition("/")[0] for name_request in name_requests} | {"hub"}
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
        name_requests: dict[str, NameRequest] = {}
        for owner, (name, config) in TENANTS.items():
            name_requests[owner] = NameRequest(owner, name, created(now) if is_young else OLD, config)
            claims = settle_claims(claims, [*name_requests.values()], now)
        running = {name: queue[0].owner for name, queue in claims.scores.items()}
        assert running == {"x": "hub/a", "y": "hub/d"}
        now += 100
        # The scorers are deleted together, or one by one in another order.
        for owner in [] if position % 2 else Random(position).sample(owners, len(owners)):
            del name_requests[owner]
            claims = settle_claims(claims, [*name_requests.values()], now)
            now += step
        name_requests = {}
        if position % 3:
            claims = settle_claims(claims, [], now)
        for owner in order:
            name, config = TENANTS[owner]
            if not is_resolved:
                name_requests[owner] = NameRequest(owner, None, created(now), config)
                claims = settle_claims(claims, [*name_requests.values()], now)
            name_requests[owner] = NameRequest(owner, name, created(now), config)
            claims = settle_claims(claims, [*name_requests.values()], now)
            now += step
        for seconds in (0, 2 * RESERVATION_SECONDS):
            claims = settle_claims(claims, [*name_requests.values()], now + seconds)
            assert {name: queue[0].owner for name, queue in claims.scores.items()} == running, order


@pytest.mark.parametrize(
    ("config", "is_rename"), [("", True), ("of-victim", True), ("other", False)], ids=["spec", "same-config", "config"]
)
def test_rename_needs_the_score_name_in_the_spec_or_the_same_config(config: str, is_rename: bool) -> None:
    claims = settle_claims(NameClaims(), [NameRequest("hub/victim", "x", OLD, "of-victim")], AT)
    claims = settle_claims(claims, [], AT + 10)
    new = NameRequest("hub/new", "x", created(AT + 12), config)
    claims = settle_claims(claims, [new], AT + 12)
    assert (claims.scores["x"][0].owner == "hub/new") is is_rename
    claims = settle_claims(claims, [new], AT + 11 + RESERVATION_SECONDS)
    assert claims.scores["x"][0].owner == "hub/new"


@pytest.mark.parametrize("earlier", ["y", "x"], ids=["held-another-name", "waited-for-it"])
@pytest.mark.parametrize("pause", [0, 2, 299])
def test_scorer_with_an_earlier_claim_is_no_renamed_one(earlier: str, pause: int) -> None:
    victim, other = NameRequest("hub/victim", "x", OLD), NameRequest("hub/other", earlier, created(AT))
    claims = settle_claims(NameClaims(), [victim, other], AT)
    claims = settle_claims(claims, [victim], AT + 10)
    claims = settle_claims(claims, [], AT + 10)
    other = NameRequest("hub/other", "x", created(AT + 10 + pause))
    for seconds in (0, RESERVATION_SECONDS - pause - 1):
        claims = settle_claims(claims, [other], AT + 10 + pause + seconds)
        assert claims.scores["x"][0].owner == "hub/victim"
    assert settle_claims(claims, [other], AT + 10 + RESERVATION_SECONDS).scores["x"][0].owner == "hub/other"


def test_renamed_and_replaced_scorer_keeps_its_name() -> None:
    claims = settle_claims(NameClaims(), [NameRequest("hub/old", "x", OLD)], AT)
    claims = settle_claims(claims, [NameRequest("hub/new", "x", created(AT + 1))], AT + 1)
    assert claims.scores["x"][0].owner == "hub/new"
    later = AT + 10 * RESERVATION_SECONDS
    claims = settle_claims(claims, [], later)
    claims = settle_claims(claims, [NameRequest("hub/old", "x", created(later + 1))], later + 1)
    claims = settle_claims(claims, [NameRequest("hub/new", "x", created(later + 2))], later + 2)
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
        NameRequest,
        st.sampled_from(["hub/a", "hub/b", "team/a", "team/b"]),
        st.sampled_from(["x", "y", "", None]),
        st.sampled_from([OLD, NEW, None]),
    ),
    unique_by=lambda name_request: name_request.owner,
)


@given(WISHES, WISHES, st.randoms())
def test_claims_do_not_depend_on_the_order_of_requests(
    before: list[NameRequest], after: list[NameRequest], random: Random
) -> None:
    queues = update_queues({}, before, AT, HOME)
    shuffled = list(after)
    random.shuffle(shuffled)
    assert update_queues(queues, shuffled, AT + 5, HOME) == update_queues(queues, after, AT + 5, HOME)


class Names(RuleBasedStateMachine):
    """In any history, a holder changes only if it gave the name up."""

    def __init__(self) -> None:
        super().__init__()
        self.now = AT
        self.name_requests: dict[str, NameRequest] = {}
        self.queues: dict[str, tuple[NameClaim, ...]] = {}
        # A scorer without creation time counts as the newest.
        self.ages = itertools.cycle([OLD, NEW, None])

    def update_queues(self) -> None:
        before, self.queues = self.queues, update_queues(self.queues, self.name_requests.values(), self.now, HOME)
        for name, queue in before.items():
            holder = queue[0]
            name_request = self.name_requests.get(holder.owner)
            gave_up = name_request is not None and name_request.name not in (name, None)
            is_forgotten = name_request is None and holder.gone_at and self.now >= holder.gone_at + RESERVATION_SECONDS
            is_renamed = name_request is None and any(
                other.name == name
                and other.owner.partition("/")[0] == holder.owner.partition("/")[0]
                and other.created is None
                for other in self.name_requests.values()
            )
            if gave_up or is_forgotten or is_renamed:
                continue
            assert self.queues[name][0].owner == holder.owner
            assert self.queues[name][0].claimed_at == holder.claimed_at

    @rule(
        owner=st.sampled_from(["hub/a", "hub/b", "team/a", "team/b"]),
        name=st.sampled_from(["x", "y", None, ""]),
    )
    def create_or_change(self, owner: str, name: str | None) -> None:
        earlier_request = self.name_requests.get(owner)
        self.name_requests[owner] = NameRequest(
            owner, name, earlier_request.created if earlier_request else next(self.ages)
        )
        self.update_queues()

    @precondition(lambda self: self.name_requests)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        del self.name_requests[data.draw(st.sampled_from(sorted(self.name_requests)))]
        self.update_queues()

    @rule(seconds=st.sampled_from([0, 1, RESERVATION_SECONDS - 1, RESERVATION_SECONDS, 10 * RESERVATION_SECONDS]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.update_queues()

    @rule()
    def restart(self) -> None:
        claims = NameClaims(scores=self.queues)
        self.queues = dict(NameClaims.parse({name: claims.dump(name) for name in ("hub", "team")}).scores)
        self.update_queues()

    @invariant()
    def each_scorer_has_at_most_the_claim_that_it_wants(self) -> None:
        claims = [(claim.owner, name) for name, queue in self.queues.items() for claim in queue]
        assert len({owner for owner, _ in claims}) == len(claims)
        for owner, name_request in self.name_requests.items():
            if name_request.name:
                assert (owner, name_request.name) in claims

    @invariant()
    def of_those_that_wait_the_hubs_namespace_comes_first(self) -> None:
        for _, *waiting in self.queues.values():
            order = [(not claim.owner.startswith("hub/"), claim.claimed_at) for claim in waiting]
            assert order == sorted(order)


Names.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestNames = Names.TestCase
