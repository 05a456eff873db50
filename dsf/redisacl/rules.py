"""Redis ACL rules of each user, built from the names in `dsf.keys`.

A rule of Redis' ACL either belongs to the user or is part of a *selector*, written in parentheses. A command is allowed
when one of them allows the command and all of its keys; so each selector here joins some commands with only the keys
that they need. Rules are made for Redis 7.0 and later (selectors, `%R~` and `%W~`), and Valkey.

A script needs `evalsha` on all of its keys in one selector, and then every command inside it is checked again. No
user gets KEYS, SCAN, EVAL, CONFIG or SELECT, which are not limited to keys. Everything is in database 0.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Final

from dsf import keys
from dsf.settings import TARGETS

#: The entry point group of other distributions' rights: a mapping from a role, which may be a new one, to rules.
GROUP: Final = "dsf.redis_rights"

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


def hub_user(role: str) -> str:
    """Name of the user of a role."""
    return f"dsf-{role}"


_CLUSTER_PREFIX: Final = "spoke-"


def cluster_user(cluster: str) -> str:
    """Name of the user of a managed cluster."""
    return _CLUSTER_PREFIX + cluster


def cluster_of_user(user: str) -> str | None:
    """Return the cluster whose user this is; None for any other user."""
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
    slots = _slots(cluster)
    queue = _exactly(keys.spoke_queue(cluster))
    return [
        *_NOTHING,
        *_commands("ping time client|setname"),
        selector("brpop llen", rw=[queue]),
        selector("set", w=[*slots, _exactly(keys.mail_flag(cluster))]),
        selector("exists", r=slots),
        selector(
            "publish",
            channels=[
                *(EVENTS.removesuffix("*") + kind for kind in _EVENT_KINDS),
                keys.CONTROL.reply(f"spoke@{_exactly(cluster)}"),
            ],
        ),
        selector("subscribe unsubscribe", channels=keys.CONTROL),
    ]


def hub_rules(role: str) -> list[str]:
    """Rules of one of the hub's users, for ACL SETUSER."""
    return [*_NOTHING, *_rules_by_role()[role]]


def hub_roles() -> tuple[str, ...]:
    """Return the users of the hub's side.

    `hub` is that of a process with all services; `controller`, `beat`, `results` and `web` are those of single
    services. `operator` is for users and the command line: it is admin of the framework, not of Redis. `flower-tasks`:
    a Flower that may start tasks. `sentinel`, `replica`: Redis' own processes.
    """
    return tuple(_rules_by_role())


@functools.cache
def _rules_by_role() -> dict[str, list[str]]:
    rules = {role: list(own_rules) for role, own_rules in _RULES.items()}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        for role, added in entry.load().items():
            rules.setdefault(role, []).extend(added)
    rules["hub"] = _joined(*(rules[service] for service in TARGETS))
    return rules


def _commands(names: str) -> list[str]:
    return [f"+{name}" for name in names.split()]


def selector(
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
    """Return a pattern that matches this name only."""
    return _SPECIAL.sub(r"\\\1", name)


def _slots(cluster: str) -> list[str]:
    """Patterns that match the slots of a cluster only. They are few: a command may name a million keys, and Redis
    compares each with one pattern after the other, while all other clients wait."""
    prefix = _exactly(keys.mail_slot(cluster, 0).removesuffix("0"))
    tens, last = divmod(keys.MAIL_SLOTS - 1, 10)
    return [*(f"{prefix}{ten or ''}[0-9]" for ten in range(tens)), f"{prefix}{tens or ''}[0-{last}]"]


#: Every process reads the clock of Redis.
CLIENT: Final = _commands("ping client|setname time")
#: Processes report how far their own clocks are off.
_REPORT_CLOCK: Final = selector("hset", w=[keys.CLOCKS])
SCRIPTS: Final = _commands("script|load")
_TRANSACTIONS: Final = _commands("multi exec discard unwatch")

_READER: Final = [
    selector(
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
            keys.ROWS,
            keys.SKIPS,
            keys.UNWRITTEN,
            keys.HUB_PROBLEMS,
            _PAIRS,
        ],
    ),
    selector("lrange", r=[_HISTORIES]),
    selector("zmscore zrange zcount", r=[keys.DUE]),
    selector("get", r=[keys.SEQUENCE]),
    selector("zrange", r=[keys.CHANGED]),
    selector("exists", r=[_MAIL]),
    # Whether each stage works, and which runs have no result yet.
    selector("mget", r=_MARKS),
    selector("zrange", r=[keys.OPEN_RUNS]),
    selector("llen", r=[_SPOKES, keys.RESULTS_QUEUE]),
    selector("xrevrange", r=[keys.CHANGES]),
]

#: Commands of scripts that notify readers of a changed pair, without its new state.
_TELL_READERS: Final = [
    selector("incrby set", rw=[keys.SEQUENCE]),
    selector("zadd", w=[keys.CHANGED]),
]

_BEAT: Final = [
    *CLIENT,
    _REPORT_CLOCK,
    *SCRIPTS,
    selector(
        "evalsha",
        rw=[keys.DUE, keys.OPEN_RUNS, keys.BEAT_STATS, keys.BEAT_LAGS, keys.BEAT_LOCK, keys.SKIPS, _PAIRS, _SPOKES],
    ),
    selector("zrangebyscore zrange zscore zmscore zadd zrem", rw=[keys.DUE]),
    selector("hmget hlen hgetall", r=[keys.ENTRIES, keys.OVERRIDES]),
    selector("zadd", w=[keys.OPEN_RUNS]),
    # Counters only: beat cannot write a score or a state.
    selector("hincrby", rw=[_PAIRS]),
    selector("hincrby hincrbyfloat", rw=[keys.BEAT_STATS]),
    selector("hincrby", rw=[keys.BEAT_LAGS]),
    selector("hmget hset hdel", rw=[keys.SKIPS]),
    *_TELL_READERS,
    selector("lpush llen", w=[_SPOKES]),
    selector("exists", r=[_MAIL]),
    selector("set get del pttl pexpire", rw=[keys.BEAT_LOCK]),
    selector("blpop", rw=[keys.BEAT_WAKE]),
    selector("get set", rw=[keys.clock("beat")]),
]

_RESULTS: Final = [
    *CLIENT,
    _REPORT_CLOCK,
    *SCRIPTS,
    *_TRANSACTIONS,
    # No write to any agent's queue: the content of a result cannot become a tick.
    selector(
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
    selector("hmget hincrby hdel", rw=[keys.SCORE_BYTES]),
    selector("set", w=_MARKS),
    # Overrides only say in which interval a pair runs.
    selector("hmget", r=[keys.ENTRIES, keys.OVERRIDES]),
    selector("hget hmget hset hdel hkeys", rw=[keys.ROWS]),
    selector("hdel", w=[keys.UNWRITTEN]),
    selector("hkeys hdel", rw=[keys.BEAT_LAGS]),
    # Leftovers of pairs that are not in the schedule any more.
    selector("zrange zrem", rw=[keys.CHANGED]),
    selector("hdel", w=[keys.SKIPS]),
    selector("del", w=[_PAIRS, _HISTORIES]),
    *_TELL_READERS,
    # Its own queue, to which nothing is sent.
    selector("brpop llen", rw=[keys.RESULTS_QUEUE]),
    selector("exists strlen mget getrange del", rw=[_MAIL]),
    selector("hmget hset hkeys hdel", rw=[keys.MAIL_CLAIMS]),
    selector("hgetall hset hdel", rw=[keys.MAIL_READING]),
    selector("hgetall hincrby hdel", rw=[keys.MAIL_SUSPECTS]),
    selector("hgetall hget hmget hkeys", r=[keys.SCORERS, keys.CLUSTERS]),
    selector("hset", w=[keys.KEYS_USED, keys.AGENTS]),
    selector("hexists hkeys", r=[keys.ENTRIES]),
    selector("hmget hget hset hdel hexists hlen hincrby", rw=[_PAIRS]),
    selector("lpush ltrim lrange llen", rw=[_HISTORIES]),
    selector("zadd zrem zscore zmscore zrangebyscore zremrangebyscore", rw=[keys.OPEN_RUNS, keys.LOST_RUNS]),
    selector("hincrby", rw=[keys.WRITES]),
    selector("lpush ltrim", w=[keys.WRITES_WAKE]),
    selector("hget", r=[keys.WRITE_STATS]),
    selector("hincrby", rw=[keys.REJECTED, keys.REJECTED_MAIL]),
    selector("get set", rw=[keys.clock("results")]),
    selector("sadd", w=[keys.HUB_CHANGED]),
    selector("lpush ltrim", w=[keys.HUB_WAKE]),
    selector("publish", channels=[EVENTS, keys.CONTROL.reply("results@*")]),
    selector("subscribe unsubscribe", channels=keys.CONTROL),
]

#: Commands of `dsf.store.ticks.send_now`: open a run, count it, push its tick.
SEND_NOW: Final = [
    selector("evalsha"),
    selector("hexists", r=[keys.ENTRIES]),
    selector("zscore zadd", rw=[keys.OPEN_RUNS]),
    selector("hincrby", rw=[_PAIRS]),
    selector("lpush llen", w=[_SPOKES]),
]

#: Commands of `dsf.fleet.changes.record`: record a user's action, and notify the hub controller.
RECORD: Final = [
    selector("evalsha"),
    selector("xadd", w=[keys.CHANGES]),
    selector("lpush ltrim", w=[keys.HUB_WAKE]),
]

#: Commands of `dsf schedule`: overrides, and the due times that they move.
_OVERRIDE: Final = [
    *_TELL_READERS,
    selector("evalsha"),
    selector("sadd", w=[keys.HUB_CHANGED]),
    selector("evalsha", rw=[keys.ENTRIES, keys.DUE, keys.FIRST_RUNS, keys.BEAT_WAKE]),
    selector("hset hdel", w=[keys.OVERRIDES]),
    selector("hexists", r=[keys.ENTRIES]),
    selector("zscore zadd", rw=[keys.DUE]),
    selector("get set", rw=[keys.FIRST_RUNS]),
    selector("lpush ltrim", w=[keys.BEAT_WAKE]),
]

_CONTROLLER: Final = [
    *CLIENT,
    _REPORT_CLOCK,
    *_TELL_READERS,
    *SCRIPTS,
    *_TRANSACTIONS,
    selector("evalsha", rw=[keys.ENTRIES, keys.DUE, keys.FIRST_RUNS, keys.BEAT_WAKE, keys.SCORE_BYTES]),
    selector("hincrby hdel", w=[keys.SCORE_BYTES]),
    selector("hget hmget hgetall hset hdel", rw=[keys.SCORERS, keys.CLUSTERS]),
    selector("hset hdel hkeys hlen", rw=[keys.SCORER_NOTICES, keys.CLUSTER_NOTICES]),
    selector("hget hset hdel hkeys", rw=[keys.CONFIG_READS]),
    selector("hget hmget hgetall hkeys hset hdel hexists", rw=[keys.ENTRIES]),
    selector("zmscore zscore zadd zrem", rw=[keys.DUE]),
    selector("get set", rw=[keys.FIRST_RUNS]),
    selector("lpush ltrim", w=[keys.BEAT_WAKE]),
    selector("hgetall hmget hkeys hdel", rw=[keys.OVERRIDES]),
    selector("zscan zrem", rw=[keys.OPEN_RUNS]),
    selector("hmget hget hdel", rw=[keys.ROWS, keys.SKIPS]),
    selector("zrem", w=[keys.CHANGED]),
    # The score writer.
    selector("hget", r=[_PAIRS]),
    selector("hgetall del", rw=[keys.WRITES]),
    selector("blpop", rw=[keys.WRITES_WAKE]),
    selector("evalsha", rw=[keys.UNWRITTEN]),
    selector("hmget hget hset hdel hkeys", rw=[keys.UNWRITTEN]),
    selector("hget hset hincrby", rw=[keys.WRITE_STATS]),
    selector("del", w=[_PAIRS, _HISTORIES, _SPOKES, _MAIL]),
    selector("hget hgetall hset hdel", rw=[keys.KEYS_USED]),
    selector("hget hgetall hset hdel watch", rw=[keys.KEY_REQUESTS]),
    selector("hgetall hdel", rw=[keys.AGENTS]),
    # Queues of clusters that are not registered: SCAN returns names only.
    *_commands("scan"),
    selector("hkeys", r=[keys.CLUSTERS]),
    selector("spop blpop", rw=[keys.HUB_CHANGED, keys.HUB_WAKE]),
    # User actions become Events.
    selector("xrange", r=[keys.CHANGES]),
    # Acts that annotations request.
    *_OVERRIDE,
    *RECORD,
    *SEND_NOW,
    selector("hget", r=[keys.OVERRIDES]),
    selector("lrange", r=[_HISTORIES]),
    selector("hmget hgetall", r=[_PAIRS]),
    selector("hget hgetall", r=[keys.SCORER_NOTICES, keys.CLUSTER_NOTICES]),
    selector("llen", r=[_SPOKES]),
    selector("exists", r=[_MAIL]),
    selector("get set", rw=[keys.CHANGES_TOLD]),
    # The users of the clusters. ACL SETUSER cannot be limited: in effect this user is an admin of Redis.
    *_commands("acl|setuser acl|deluser acl|list acl|save acl|whoami client|kill"),
    # Logs of Redis that clients can fill.
    *_commands("acl|log slowlog|reset"),
    # Whether Redis itself is as it must be, and whose it is.
    *_commands("info"),
    selector("evalsha get set del pexpire", rw=[keys.OWNER]),
    selector("evalsha hkeys hset hdel", rw=[keys.HUB_PROBLEMS]),
    selector("hgetall hdel", rw=[keys.CLOCKS]),
]

_QUESTIONS: Final = [
    selector("publish", channels=[keys.CONTROL.questions]),
    selector("psubscribe punsubscribe", channels=[keys.CONTROL.reply("*")]),
]
_CONTROL: Final = [*_QUESTIONS, selector("publish", channels=[keys.CONTROL.commands])]

_OPERATOR: Final = [
    *CLIENT,
    *SCRIPTS,
    *_READER,
    *_OVERRIDE,
    # `dsf credentials`: it sends requests to the hub controller and reads no secret.
    selector("hgetall", r=[keys.KEYS_USED]),
    selector("hgetall hset", rw=[keys.KEY_REQUESTS]),
    *RECORD,
    # `dsf rescore`, and `celery call` with a cluster's queue
    *SEND_NOW,
    # `celery status`, `celery inspect` and `celery control`
    *_CONTROL,
]

#: Acts for authorised users; their sessions are its own keys.
_WEB: Final = [
    *CLIENT,
    _REPORT_CLOCK,
    *SCRIPTS,
    *_READER,
    *_OVERRIDE,
    *RECORD,
    *SEND_NOW,
    # Metrics of Redis itself.
    *_commands("info slowlog|len"),
    selector("get set del", rw=[keys.web_session("*"), keys.web_outcome("*")]),
]

_FLOWER: Final = [
    *CLIENT,
    *_TRANSACTIONS,
    selector("llen", r=[_SPOKES, keys.RESULTS_QUEUE]),
    selector("psubscribe punsubscribe", channels=[EVENTS]),
    # Events of unknown clusters are dropped.
    selector("hkeys", r=[keys.CLUSTERS]),
    # A worker's page
    *_QUESTIONS,
    # Kombu queries the length of its subscription as if it were a queue, and deletes it; the key never exists.
    selector("llen del", rw=["celeryev.*"]),
    selector("sadd srem exists", rw=["_kombu.binding.celeryev", "_kombu.binding_permanent.celeryev"]),
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


_RULES: Final[dict[str, list[str]]] = {
    "controller": _CONTROLLER,
    "beat": _BEAT,
    "results": _RESULTS,
    "web": _WEB,
    "flower": _FLOWER,
    # Agents take what is pushed there as a tick, and a tick only names a scorer.
    # A call is refused for an unknown cluster, and expires after the interval in force.
    "flower-tasks": [
        *_FLOWER,
        *_CONTROL,
        selector("lpush", w=[_SPOKES]),
        selector("hget hgetall", r=[keys.CLUSTERS]),
        selector("hget hmget", r=[keys.ENTRIES, keys.OVERRIDES]),
    ],
    "operator": _OPERATOR,
    "sentinel": [
        *_commands("ping info role multi exec subscribe publish slaveof config|rewrite client|setname client|kill"),
        *_commands("script|kill"),
        f"&{_SENTINELS}",
    ],
    "replica": _commands("ping psync replconf"),
}
