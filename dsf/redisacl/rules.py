"""The Redis ACL rules of each user, built from the key names in `dsf.keys`.

A rule of Redis' ACL either belongs to the user itself or is part of a *selector*, written in parentheses. Redis allows
a command if the user's own rules or one selector allow the command with all of its keys. Therefore each selector
combines some commands with only the keys that they need. The rules require Redis 7.0 (selectors, `%R~` and `%W~`) or
Valkey.

A script needs `evalsha` on all of its keys in one selector; Redis also checks each command inside the script. The hub
and agents do not get KEYS, EVAL, CONFIG or SELECT, which ignore key patterns. All data is in database 0.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Final

from dsf import keys
from dsf.settings import TARGETS

#: Entry point group of the rights of other distributions: mappings from a role, which may be a new one, to rules.
GROUP: Final = "dsf.redis_rights"

#: Pattern of the channels of Celery's events, which workers publish and Flower reads.
EVENTS: Final = "/0.celeryev/*"
#: Kinds of events that the framework's workers publish. The name of a channel does not identify the sender.
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
#: Channel through which Sentinels discover each other.
_SENTINELS: Final = "__sentinel__:hello"

_NOTHING: Final = ("resetkeys", "resetchannels", "clearselectors", "-@all")
_SPOKES: Final = keys.spoke_queue("*")
_PAIRS: Final = keys.pair_key("*", "*").removesuffix("/*")
_HISTORIES: Final = keys.history_key("*", "*").removesuffix("/*")
_MAIL: Final = keys.MAIL_PREFIX + "*"
_HEARTBEATS: Final = [keys.heartbeat(stage) for stage in (keys.RESULTS_STAGE, keys.SWEEP_STAGE)]
_SPECIAL_CHARACTER_PATTERN: Final = re.compile(r"([*?\[\]\\])")


def hub_user(role: str) -> str:
    """Return the name of a role's user."""
    return f"dsf-{role}"


_CLUSTER_PREFIX: Final = "spoke-"


def cluster_user(cluster: str) -> str:
    """Return the name of a managed cluster's user."""
    return _CLUSTER_PREFIX + cluster


def parse_user_cluster(user: str) -> str | None:
    """Return the managed cluster of a user; None for other users."""
    return user.removeprefix(_CLUSTER_PREFIX) if user.startswith(_CLUSTER_PREFIX) else None


def cluster_rules(cluster: str) -> list[str]:
    """Return the rules of a managed cluster's user, for ACL SETUSER. Raises ValueError for an invalid cluster name.

    The user may take ticks from its own queue, put results into its own mailbox, publish events, read the clock, and
    receive and answer remote control commands. Scripts, transactions, other clusters' keys and appending to lists are
    denied, so that the user can store data only in its slots. The rules replace all earlier rules of the user.
    """
    if not keys.is_name(cluster):
        raise ValueError(f"not the name of a cluster: {cluster!r}")
    slots = _make_slot_patterns(cluster)
    queue = _escape(keys.spoke_queue(cluster))
    return [
        *_NOTHING,
        *_allow("ping time client|setname"),
        selector("brpop llen", rw=[queue]),
        selector("set", w=[*slots, _escape(keys.mail_flag(cluster))]),
        selector("exists", r=slots),
        selector(
            "publish",
            channels=[
                *(EVENTS.removesuffix("*") + kind for kind in _EVENT_KINDS),
                keys.CONTROL.reply(f"spoke@{_escape(cluster)}"),
            ],
        ),
        selector("subscribe unsubscribe", channels=keys.CONTROL),
    ]


def hub_rules(role: str) -> list[str]:
    """Return the rules of one of the hub's users, for ACL SETUSER."""
    return [*_NOTHING, *_load_rules()[role]]


def hub_roles() -> tuple[str, ...]:
    """Return the roles of the hub, each of which has a user.

    `hub` is a process with all services; `controller`, `beat`, `results` and `web` are single services. `operator` is
    for users of the command line, who administrate the framework but not Redis. `flower` is Flower, and `flower-tasks`
    a Flower that may start tasks. `sentinel` and `replica` are Redis' own processes.
    """
    return tuple(_load_rules())


@functools.cache
def _load_rules() -> dict[str, list[str]]:
    rules = {role: list(own_rules) for role, own_rules in _RULES.items()}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        for role, added_rules in entry.load().items():
            rules.setdefault(role, []).extend(added_rules)
    rules["hub"] = _join_rules(*(rules[service] for service in TARGETS))
    return rules


def _allow(names: str) -> list[str]:
    """Return rules that allow these commands, which are separated by blanks."""
    return [f"+{name}" for name in names.split()]


def selector(
    commands: str,
    *,
    rw: Iterable[str] = (),
    r: Iterable[str] = (),
    w: Iterable[str] = (),
    channels: Iterable[str] = (),
) -> str:
    """Return a selector that allows the commands, separated by blanks, on keys and channels that match the patterns.

    `rw` are patterns of keys that may be read and written, `r` of keys that may only be read, and `w` of keys that may
    only be written.
    """
    rules = [*_allow(commands)]
    for sign, patterns in (("%RW~", rw), ("%R~", r), ("%W~", w), ("&", channels)):
        rules += [sign + pattern for pattern in patterns]
    return f"({' '.join(rules)})"


def _escape(name: str) -> str:
    """Return a pattern that matches only this name."""
    return _SPECIAL_CHARACTER_PATTERN.sub(r"\\\1", name)


def _make_slot_patterns(cluster: str) -> list[str]:
    """Return patterns that match exactly the slots of a cluster's mailbox.

    Use few patterns: a command may name a million keys, and Redis compares each key with one pattern after the other,
    while all other clients wait.
    """
    prefix = _escape(keys.mail_slot(cluster, 0).removesuffix("0"))
    tens, last = divmod(keys.MAIL_SLOTS - 1, 10)
    return [*(f"{prefix}{ten or ''}[0-9]" for ten in range(tens)), f"{prefix}{tens or ''}[0-{last}]"]


#: Commands of all clients: all processes read the clock of Redis.
CLIENT: Final = _allow("ping client|setname time")
#: Processes report the offset of their machine's clock.
_REPORT_CLOCK: Final = selector("hset", w=[keys.CLOCKS])
SCRIPTS: Final = _allow("script|load")
_TRANSACTIONS: Final = _allow("multi exec discard unwatch")

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
    # For the state of the stages, and for runs without a result.
    selector("mget", r=_HEARTBEATS),
    selector("zrange", r=[keys.OPEN_RUNS]),
    selector("llen", r=[_SPOKES, keys.RESULTS_QUEUE]),
    selector("xrevrange", r=[keys.CHANGES]),
]

#: Commands of scripts that notify readers of a changed pair, without its new state.
_NOTIFY_READERS: Final = [
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
    # Beat may only change the counters of a pair, and cannot write a score or a state.
    selector("hincrby", rw=[_PAIRS]),
    selector("hincrby hincrbyfloat", rw=[keys.BEAT_STATS]),
    selector("hincrby", rw=[keys.BEAT_LAGS]),
    selector("hmget hset hdel", rw=[keys.SKIPS]),
    *_NOTIFY_READERS,
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
    # Agents' queues are missing, so that the content of a result cannot become a tick.
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
    selector("set", w=_HEARTBEATS),
    # Overrides contain the interval of a pair.
    selector("hmget", r=[keys.ENTRIES, keys.OVERRIDES]),
    selector("hget hmget hset hdel hkeys", rw=[keys.ROWS]),
    selector("hdel", w=[keys.UNWRITTEN]),
    selector("hkeys hdel", rw=[keys.BEAT_LAGS]),
    # For the removal of the data of pairs that are no longer in the schedule.
    selector("zrange zrem", rw=[keys.CHANGED]),
    selector("hdel", w=[keys.SKIPS]),
    selector("del", w=[_PAIRS, _HISTORIES]),
    *_NOTIFY_READERS,
    # The queue of the Celery worker, which is always empty.
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

#: Commands of `dsf.fleet.changes.record_change`: record a user's action, and notify the hub controller.
RECORD: Final = [
    selector("evalsha"),
    selector("xadd", w=[keys.CHANGES]),
    selector("lpush ltrim", w=[keys.HUB_WAKE]),
]

#: Commands of `dsf schedule`, which change overrides and due times.
_OVERRIDE: Final = [
    *_NOTIFY_READERS,
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
    *_NOTIFY_READERS,
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
    # For the score writer.
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
    # For finding the queues of clusters that are not registered. SCAN returns only names.
    *_allow("scan"),
    selector("hkeys", r=[keys.CLUSTERS]),
    selector("spop blpop", rw=[keys.HUB_CHANGED, keys.HUB_WAKE]),
    # For Kubernetes Events about changes by users.
    selector("xrange", r=[keys.CHANGES]),
    # For acts that annotations request.
    *_OVERRIDE,
    *RECORD,
    *SEND_NOW,
    selector("hget", r=[keys.OVERRIDES]),
    selector("lrange", r=[_HISTORIES]),
    selector("hmget hgetall", r=[_PAIRS]),
    selector("hget hgetall", r=[keys.SCORER_NOTICES, keys.CLUSTER_NOTICES]),
    selector("llen", r=[_SPOKES]),
    selector("exists", r=[_MAIL]),
    selector("get set", rw=[keys.CHANGES_NOTIFIED]),
    # For managing the users of clusters. ACL SETUSER cannot be limited: in effect, this user is an admin of Redis.
    *_allow("acl|setuser acl|deluser acl|list acl|save acl|whoami client|kill"),
    # For emptying the logs of Redis, which clients can fill.
    *_allow("acl|log slowlog|reset"),
    # For checking the configuration and the owner of Redis.
    *_allow("info"),
    selector("evalsha get set del pexpire", rw=[keys.OWNER]),
    selector("evalsha hkeys hset hdel", rw=[keys.HUB_PROBLEMS]),
    selector("hgetall hdel", rw=[keys.CLOCKS]),
]

#: Remote control commands of Celery that only read.
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
    # `dsf credentials`, which sends requests to the hub controller and reads no secret
    selector("hgetall", r=[keys.KEYS_USED]),
    selector("hgetall hset", rw=[keys.KEY_REQUESTS]),
    *RECORD,
    # `dsf rescore`, and `celery call` with a cluster's queue
    *SEND_NOW,
    # `celery status`, `celery inspect` and `celery control`
    *_CONTROL,
]

#: The page executes acts for authorized users, and stores their sessions.
_WEB: Final = [
    *CLIENT,
    _REPORT_CLOCK,
    *SCRIPTS,
    *_READER,
    *_OVERRIDE,
    *RECORD,
    *SEND_NOW,
    # For metrics of Redis itself.
    *_allow("info slowlog|len"),
    selector("get set del", rw=[keys.web_session("*"), keys.web_outcome("*")]),
]

_FLOWER: Final = [
    *CLIENT,
    *_TRANSACTIONS,
    selector("llen", r=[_SPOKES, keys.RESULTS_QUEUE]),
    selector("psubscribe punsubscribe", channels=[EVENTS]),
    # For dropping the events of unknown clusters.
    selector("hkeys", r=[keys.CLUSTERS]),
    # For Flower's page of a worker.
    *_QUESTIONS,
    # Kombu treats its subscription as a queue: it queries its length and deletes it. The key never exists.
    selector("llen del", rw=["celeryev.*"]),
    selector("sadd srem exists", rw=["_kombu.binding.celeryev", "_kombu.binding_permanent.celeryev"]),
]


def _join_rules(*roles: list[str]) -> list[str]:
    """Return rules without selectors that allow all commands on all keys of the roles.

    Redis would try selectors one by one. The rules allow more than the roles together, because each command is allowed
    on each key. This does not weaken security, because the user of all services may manage users anyway. Patterns for
    reading and for writing stay separate.
    """
    words = [word.strip("()") for rules in roles for rule in rules for word in rule.split()]
    access: dict[str, set[str]] = {}
    for word in words:
        if word.startswith("%"):
            sign, _, pattern = word.partition("~")
            access.setdefault(pattern, set()).update(sign.removeprefix("%"))
    key_rules = [f"%{'RW' if len(signs) > 1 else min(signs)}~{pattern}" for pattern, signs in access.items()]
    return [
        *dict.fromkeys(word for word in words if word[0] == "+"),
        *key_rules,
        *dict.fromkeys(word for word in words if word[0] == "&"),
    ]


_RULES: Final[dict[str, list[str]]] = {
    "controller": _CONTROLLER,
    "beat": _BEAT,
    "results": _RESULTS,
    "web": _WEB,
    "flower": _FLOWER,
    # An agent treats each message in its queue as a tick, which only names a scorer. Flower rejects calls for unknown
    # clusters, and each call expires after the current interval.
    "flower-tasks": [
        *_FLOWER,
        *_CONTROL,
        selector("lpush", w=[_SPOKES]),
        selector("hget hgetall", r=[keys.CLUSTERS]),
        selector("hget hmget", r=[keys.ENTRIES, keys.OVERRIDES]),
    ],
    "operator": _OPERATOR,
    "sentinel": [
        *_allow("ping info role multi exec subscribe publish slaveof config|rewrite client|setname client|kill"),
        *_allow("script|kill"),
        f"&{_SENTINELS}",
    ],
    "replica": _allow("ping psync replconf"),
}
