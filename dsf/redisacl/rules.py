"""Redis ACL rules of each user, built from the names in `dsf.keys`.

A rule of Redis' ACL either belongs to the user or is part of a *selector*, written in parentheses. A command is allowed
when one of them allows the command and all of its keys; so each selector here joins some commands with only the keys
that they need. Rules are made for Redis 7.0 and later (selectors, `%R~` and `%W~`), and Valkey.

A script needs `evalsha` on all of its keys in one selector, and then every command inside it is checked again. No
user gets KEYS, SCAN, EVAL, CONFIG or SELECT, which are not limited to keys. Everything is in database 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, get_args

from dsf import keys

#: A user of the hub's side. `hub` is that of a process with all services; `controller`, `beat`, `results` and `web` are
#: those of single services. `operator` is for users and the command line: it is admin of the framework, not of Redis.
#: `flower-tasks`: a Flower that may start tasks. `probe`: health checks. `sentinel`, `replica`: Redis' own processes.
HubRole = Literal[
    "controller",
    "beat",
    "results",
    "web",
    "flower",
    "flower-tasks",
    "optimizer",
    "hub",
    "operator",
    "probe",
    "sentinel",
    "replica",
]
HUB_ROLES: Final[tuple[HubRole, ...]] = get_args(HubRole)

#: Channels of the events that workers send and Flower shows. Published by name, subscribed to by this pattern.
EVENTS: Final = "/0.celeryev/*"
#: The events that our workers send, as Celery names them. A channel's name does not identify the sender.
_EVENT_KINDS: Final = (
    *("worker.online", "worker.heartbeat", "worker.offline"),
    # Task events are batched in one message.
    "task.multi",
    *(
        "task.received",
        "task.started",
        "task.succeeded",
        "task.failed",
        "task.retried",
        "task.revoked",
        "task.rejected",
    ),
)
#: Channel for Sentinel discovery.
_SENTINELS: Final = "__sentinel__:hello"

_NOTHING: Final = ("resetkeys", "resetchannels", "clearselectors", "-@all")
_SPOKES: Final = keys.spoke_queue("*")
_PAIRS: Final = keys.pair_key("*", "*").removesuffix("/*")
_HISTORIES: Final = keys.history_key("*", "*").removesuffix("/*")
_MAIL: Final = keys.MAIL_PREFIX + "*"
_MARKS: Final = [keys.stage_mark(stage) for stage in (keys.RESULTS_STAGE, keys.SWEEP_STAGE)]
_SPECIAL: Final = re.compile(r"([*?\[\]\\])")


def hub_user(role: HubRole) -> str:
    """Name of the user of a role."""
    return f"dsf-{role}"


_CLUSTER_PREFIX: Final = "spoke-"


def cluster_user(cluster: str) -> str:
    """Name of the user of a managed cluster."""
    return _CLUSTER_PREFIX + cluster


def cluster_of_user(user: str) -> str | None:
    """The cluster whose user this is; None for any other user."""
    return user.removeprefix(_CLUSTER_PREFIX) if user.startswith(_CLUSTER_PREFIX) else None


def cluster_rules(cluster: str) -> list[str]:
    """Rules of a managed cluster's user, for ACL SETUSER.

    Allowed: take ticks from its own queue, put results into its own mailbox, publish events, compare clocks, hear
    commands of people on the hub and reply. Not allowed: scripts, transactions, access to other clusters, and filling a
    list: the user can only store data in its slots. The rules are the same whatever the cluster has done so far. Raises
    ValueError for an invalid cluster name.
    """
    if not keys.is_name(cluster):
        raise ValueError(f"not the name of a cluster: {cluster!r}")
    slots = [_exactly(slot) for slot in keys.mail_slots(cluster)]
    queue = _exactly(keys.spoke_queue(cluster))
    return [
        *_NOTHING,
        *_commands("ping time client|setname"),
        _selector("brpop llen", rw=[queue]),
        _selector("set", w=[*slots, _exactly(keys.mail_flag(cluster))]),
        _selector("exists", r=slots),
        _selector(
            "publish",
            channels=[
                *(EVENTS.removesuffix("*") + kind for kind in _EVENT_KINDS),
                keys.CONTROL.reply(f"spoke@{_exactly(cluster)}"),
            ],
        ),
        _selector("subscribe unsubscribe", channels=keys.CONTROL),
    ]


def hub_rules(role: HubRole) -> list[str]:
    """Rules of one of the hub's users, for ACL SETUSER."""
    return [*_NOTHING, *_RULES[role]]


def _commands(names: str) -> list[str]:
    return [f"+{name}" for name in names.split()]


def _selector(
    commands: str,
    *,
    rw: Iterable[str] = (),
    r: Iterable[str] = (),
    w: Iterable[str] = (),
    channels: Iterable[str] = (),
) -> str:
    rules = [*_commands(commands)]
    for sign, patterns in (("%RW~", rw), ("%R~", r), ("%W~", w), ("&", channels)):
        rules += [sign + pattern for pattern in patterns]
    return f"({' '.join(rules)})"


def _exactly(name: str) -> str:
    """A pattern that matches this name only."""
    return _SPECIAL.sub(r"\\\1", name)


#: Every process reads the clock of Redis.
_CLIENT: Final = _commands("ping client|setname time")
#: Processes report how far their own clocks are off.
_REPORT_CLOCK: Final = _selector("hset", w=[keys.CLOCKS])
_SCRIPTS: Final = _commands("script|load")
_TRANSACTIONS: Final = _commands("multi exec discard unwatch")

_READER: Final = [
    _selector(
        "hget hmget hgetall hkeys hlen",
        r=[
            keys.SCORERS,
            keys.CLUSTERS,
            keys.SCORER_NOTICES,
            keys.CLUSTER_NOTICES,
            keys.CONFIG_READS,
            keys.ENTRIES,
            keys.OVERRIDES,
            keys.BEAT_STATS,
            keys.REJECTED,
            keys.REJECTED_MAIL,
            keys.WRITE_STATS,
            keys.AGENTS,
            keys.KEYS_USED,
            keys.BEAT_LAGS,
            keys.PLANS,
            keys.ROWS,
            keys.SKIPS,
            keys.UNWRITTEN,
            keys.HUB_PROBLEMS,
            _PAIRS,
        ],
    ),
    _selector("lrange", r=[_HISTORIES]),
    _selector("zmscore zrange zcount", r=[keys.DUE]),
    _selector("get", r=[keys.SEQUENCE]),
    _selector("zrange", r=[keys.CHANGED]),
    _selector("exists", r=[_MAIL]),
    # Whether each stage works, and which runs have no result yet.
    _selector("mget", r=_MARKS),
    _selector("zrange", r=[keys.OPEN_RUNS]),
    _selector("llen", r=[_SPOKES, keys.RESULTS_QUEUE]),
    _selector("xrevrange", r=[keys.CHANGES]),
]

#: Commands of scripts that tell readers that a pair has changed, without a word on how it is.
_TELL_READERS: Final = [
    _selector("incrby set", rw=[keys.SEQUENCE]),
    _selector("zadd", w=[keys.CHANGED]),
]

_BEAT: Final = [
    *_CLIENT,
    _REPORT_CLOCK,
    *_SCRIPTS,
    _selector(
        "evalsha",
        rw=[keys.DUE, keys.OPEN_RUNS, keys.BEAT_STATS, keys.BEAT_LAGS, keys.BEAT_LOCK, keys.SKIPS, _PAIRS, _SPOKES],
    ),
    _selector("zrangebyscore zrange zscore zmscore zadd zrem", rw=[keys.DUE]),
    _selector("hmget hlen hgetall", r=[keys.ENTRIES, keys.OVERRIDES]),
    _selector("zadd", w=[keys.OPEN_RUNS]),
    # Counters only: beat cannot write a score or a state.
    _selector("hincrby", rw=[_PAIRS]),
    _selector("hincrby hincrbyfloat", rw=[keys.BEAT_STATS]),
    _selector("hincrby", rw=[keys.BEAT_LAGS]),
    _selector("hmget hset hdel", rw=[keys.SKIPS]),
    *_TELL_READERS,
    _selector("lpush llen", w=[_SPOKES]),
    _selector("exists", r=[_MAIL]),
    _selector("set get del pttl pexpire", rw=[keys.BEAT_LOCK]),
    _selector("blpop", rw=[keys.BEAT_WAKE]),
    _selector("get set", rw=[keys.clock("beat")]),
]

_RESULTS: Final = [
    *_CLIENT,
    _REPORT_CLOCK,
    *_SCRIPTS,
    *_TRANSACTIONS,
    # No write to any agent's queue: the content of a result cannot become a tick.
    _selector(
        "evalsha",
        rw=[
            keys.OPEN_RUNS,
            keys.LOST_RUNS,
            keys.ENTRIES,
            keys.SCORERS,
            keys.WRITES,
            keys.WRITES_WAKE,
            keys.REJECTED,
            keys.REJECTED_MAIL,
            keys.CLUSTERS,
            _MAIL,
            keys.MAIL_CLAIMS,
            keys.MAIL_READING,
            keys.MAIL_SUSPECTS,
            keys.HUB_CHANGED,
            keys.HUB_WAKE,
            keys.UNWRITTEN,
            keys.SCORE_BYTES,
            _PAIRS,
            _HISTORIES,
        ],
    ),
    _selector("hgetall hincrby", rw=[keys.SCORE_BYTES]),
    _selector("set", w=_MARKS),
    # Overrides only say in which interval a pair runs.
    _selector("hmget", r=[keys.ENTRIES, keys.OVERRIDES]),
    _selector("hget hmget hset hdel hkeys", rw=[keys.ROWS]),
    _selector("hdel", w=[keys.UNWRITTEN]),
    _selector("hkeys hdel", rw=[keys.BEAT_LAGS]),
    # Leftovers of pairs that are not in the schedule any more.
    _selector("zrange zrem", rw=[keys.CHANGED]),
    _selector("hdel", w=[keys.SKIPS]),
    _selector("del", w=[_PAIRS, _HISTORIES]),
    *_TELL_READERS,
    # Its own queue, to which nothing is sent.
    _selector("brpop llen", rw=[keys.RESULTS_QUEUE]),
    _selector("exists strlen mget getrange del", rw=[_MAIL]),
    _selector("hmget hset hkeys hdel", rw=[keys.MAIL_CLAIMS]),
    _selector("hgetall hset hdel", rw=[keys.MAIL_READING]),
    _selector("hgetall hincrby hdel", rw=[keys.MAIL_SUSPECTS]),
    _selector("hgetall hget hmget hkeys", r=[keys.SCORERS, keys.CLUSTERS]),
    _selector("hset", w=[keys.KEYS_USED, keys.AGENTS]),
    _selector("hexists hkeys", r=[keys.ENTRIES]),
    _selector("hmget hget hset hdel hexists hlen hincrby", rw=[_PAIRS]),
    _selector("lpush ltrim lrange llen", rw=[_HISTORIES]),
    _selector("zadd zrem zscore zmscore zrangebyscore zremrangebyscore", rw=[keys.OPEN_RUNS, keys.LOST_RUNS]),
    _selector("hincrby", rw=[keys.WRITES]),
    _selector("lpush ltrim", w=[keys.WRITES_WAKE]),
    _selector("hget", r=[keys.WRITE_STATS]),
    _selector("hincrby", rw=[keys.REJECTED, keys.REJECTED_MAIL]),
    _selector("get set", rw=[keys.clock("results")]),
    _selector("sadd", w=[keys.HUB_CHANGED]),
    _selector("lpush ltrim", w=[keys.HUB_WAKE]),
    _selector("publish", channels=[EVENTS, keys.CONTROL.reply("results@*")]),
    _selector("subscribe unsubscribe", channels=keys.CONTROL),
]

_CONTROLLER: Final = [
    *_CLIENT,
    _REPORT_CLOCK,
    *_TELL_READERS,
    *_SCRIPTS,
    *_TRANSACTIONS,
    _selector("evalsha", rw=[keys.ENTRIES, keys.DUE, keys.FIRST_RUNS, keys.BEAT_WAKE, keys.SCORE_BYTES]),
    _selector("hincrby", w=[keys.SCORE_BYTES]),
    _selector("hget hmget hgetall hset hdel", rw=[keys.SCORERS, keys.CLUSTERS]),
    _selector("hset hdel hkeys hlen", rw=[keys.SCORER_NOTICES, keys.CLUSTER_NOTICES]),
    _selector("hget hset hdel hkeys", rw=[keys.CONFIG_READS]),
    _selector("hget hmget hgetall hkeys hset hdel hexists", rw=[keys.ENTRIES]),
    _selector("zmscore zscore zadd zrem", rw=[keys.DUE]),
    _selector("get set", rw=[keys.FIRST_RUNS]),
    _selector("lpush ltrim", w=[keys.BEAT_WAKE]),
    _selector("hgetall hmget hkeys hdel", rw=[keys.OVERRIDES]),
    _selector("zscan zrem", rw=[keys.OPEN_RUNS]),
    _selector("hmget hget hdel", rw=[keys.ROWS, keys.SKIPS]),
    _selector("zrem", w=[keys.CHANGED]),
    # The score writer.
    _selector("hget", r=[_PAIRS]),
    _selector("hgetall del", rw=[keys.WRITES]),
    _selector("blpop", rw=[keys.WRITES_WAKE]),
    _selector("evalsha", rw=[keys.UNWRITTEN]),
    _selector("hmget hget hset hdel hkeys", rw=[keys.UNWRITTEN]),
    _selector("hget hset hincrby", rw=[keys.WRITE_STATS]),
    _selector("del", w=[_PAIRS, _HISTORIES, _SPOKES, _MAIL]),
    _selector("hget hgetall hset hdel", rw=[keys.KEYS_USED]),
    _selector("hget hgetall hdel watch", rw=[keys.KEY_REQUESTS]),
    _selector("hgetall hdel", rw=[keys.AGENTS]),
    _selector("spop blpop", rw=[keys.HUB_CHANGED, keys.HUB_WAKE]),
    # User actions become Events.
    _selector("xrange", r=[keys.CHANGES]),
    _selector("get set", rw=[keys.CHANGES_TOLD]),
    # The users of the clusters. ACL SETUSER cannot be limited: in effect this user is an admin of Redis.
    *_commands("acl|setuser acl|deluser acl|list acl|save client|kill"),
    # Whether Redis itself is as it must be, and whose it is.
    *_commands("info"),
    _selector("evalsha get set del pexpire", rw=[keys.OWNER]),
    _selector("evalsha hkeys hset hdel", rw=[keys.HUB_PROBLEMS]),
    _selector("hgetall hdel", rw=[keys.CLOCKS]),
]

#: Commands of `dsf.store.ticks.send_now`: open a run, count it, push its tick.
_SEND_NOW: Final = [
    _selector("evalsha", rw=[keys.ENTRIES, keys.OPEN_RUNS, _PAIRS, _SPOKES]),
    _selector("hexists", r=[keys.ENTRIES]),
    _selector("zscore zadd", rw=[keys.OPEN_RUNS]),
    _selector("hincrby", rw=[_PAIRS]),
    _selector("lpush llen", w=[_SPOKES]),
]

#: Commands of `dsf.fleet.changes.record`: record a user's action, and notify the hub controller.
_RECORD: Final = [
    _selector("evalsha"),
    _selector("xadd", w=[keys.CHANGES]),
    _selector("lpush ltrim", w=[keys.HUB_WAKE]),
]

#: The optimiser's proposals, kept for the page.
_PLANS: Final = [_selector("hset hdel hexists hlen", rw=[keys.PLANS])]

#: Commands of `dsf.backtest.kept`: keep backtests for the page.
_BACKTESTS: Final = [_selector("hset hkeys hdel hgetall expire", rw=[keys.backtests("*")])]

#: Commands of `dsf schedule`: overrides, and the due times that they move.
_OVERRIDE: Final = [
    *_TELL_READERS,
    _selector("evalsha", rw=[keys.OVERRIDES, keys.BEAT_WAKE, keys.HUB_CHANGED, keys.HUB_WAKE]),
    _selector("sadd", w=[keys.HUB_CHANGED]),
    _selector("evalsha", rw=[keys.ENTRIES, keys.DUE, keys.FIRST_RUNS, keys.BEAT_WAKE]),
    _selector("hset hdel", w=[keys.OVERRIDES]),
    _selector("hexists", r=[keys.ENTRIES]),
    _selector("zscore zadd", rw=[keys.DUE]),
    _selector("get set", rw=[keys.FIRST_RUNS]),
    _selector("lpush ltrim", w=[keys.BEAT_WAKE]),
]

_QUESTIONS: Final = [
    _selector("publish", channels=[keys.CONTROL.questions]),
    _selector("psubscribe punsubscribe", channels=[keys.CONTROL.reply("*")]),
]
_CONTROL: Final = [*_QUESTIONS, _selector("publish", channels=[keys.CONTROL.commands])]

_OPERATOR: Final = [
    *_CLIENT,
    *_SCRIPTS,
    *_READER,
    *_OVERRIDE,
    # `dsf credentials`: it asks the hub controller and sees no secret.
    _selector("hgetall", r=[keys.KEYS_USED]),
    _selector("hgetall hset", rw=[keys.KEY_REQUESTS]),
    *_RECORD,
    *_PLANS,
    *_BACKTESTS,
    # `dsf rescore`, and `celery call` with a cluster's queue
    *_SEND_NOW,
    # `celery status`, `celery inspect` and `celery control`
    *_CONTROL,
]

#: Acts for authorised users; their sessions are its own keys.
_WEB: Final = [
    *_CLIENT,
    _REPORT_CLOCK,
    *_SCRIPTS,
    *_READER,
    *_OVERRIDE,
    *_RECORD,
    *_SEND_NOW,
    *_BACKTESTS,
    _selector("get set del", rw=[keys.web_session("*"), keys.web_outcome("*")]),
]

#: Sends ticks and reads the scores from the hub's objects: it may not read scores, books or history here.
_OPTIMIZER: Final = [
    *_CLIENT,
    *_SCRIPTS,
    # Existing names, also for messages about unknown ones; and how long a run may take.
    _selector("hget hgetall", r=[keys.SCORERS, keys.CLUSTERS, keys.ENTRIES, keys.OVERRIDES]),
    *_SEND_NOW,
    *_RECORD,
    *_PLANS,
]

_FLOWER: Final = [
    *_CLIENT,
    *_TRANSACTIONS,
    _selector("llen", r=[_SPOKES, keys.RESULTS_QUEUE]),
    _selector("psubscribe punsubscribe", channels=[EVENTS]),
    # Events of unknown clusters are dropped.
    _selector("hkeys", r=[keys.CLUSTERS]),
    # A worker's page
    *_QUESTIONS,
    # Kombu asks for the length of its subscription as if it were a queue, and removes it; it is never there.
    _selector("llen del", rw=["celeryev.*"]),
    _selector("sadd srem exists", rw=["_kombu.binding.celeryev", "_kombu.binding_permanent.celeryev"]),
]


def _joined(*roles: list[str]) -> list[str]:
    """Rules that allow what any of the roles may do, without selectors, which Redis would try one after another.

    The rules are wider than the roles together: every command is allowed on every key. The user of all services manages
    users, so this costs no security. Key patterns keep their direction.
    """
    words = [word.strip("()") for rules in roles for rule in rules for word in rule.split()]
    access: dict[str, set[str]] = {}
    for word in words:
        if word.startswith("%"):
            sign, _, pattern = word.partition("~")
            access.setdefault(pattern, set()).update(sign.removeprefix("%"))
    keys_of = [f"%{'RW' if len(signs) > 1 else min(signs)}~{pattern}" for pattern, signs in access.items()]
    return [
        *dict.fromkeys(word for word in words if word[0] == "+"),
        *keys_of,
        *dict.fromkeys(w for w in words if w[0] == "&"),
    ]


_RULES: Final[dict[HubRole, list[str]]] = {
    "controller": _CONTROLLER,
    "beat": _BEAT,
    "results": _RESULTS,
    "web": _WEB,
    "flower": _FLOWER,
    # Agents take what is pushed there as a tick, and a tick only names a scorer.
    "flower-tasks": [*_FLOWER, *_CONTROL, _selector("lpush", w=[_SPOKES])],
    "optimizer": _OPTIMIZER,
    "hub": _joined(_CONTROLLER, _BEAT, _RESULTS, _WEB),
    "operator": _OPERATOR,
    "probe": _commands("ping"),
    "sentinel": [
        *_commands("ping info role multi exec subscribe publish slaveof config|rewrite client|setname client|kill"),
        *_commands("script|kill"),
        f"&{_SENTINELS}",
    ],
    "replica": _commands("ping psync replconf"),
}
