"""Live updates of open pages: each page is rendered once for all its viewers, at most once a second.

Rendering takes at most a twentieth of a core for any number of open pages: after each rendering the process rests
nineteen times as long. With the transfer to 200 pages it stays below a tenth. A topic is one page; its `version` counts
its changes, and each block stores its newest version, so that a reconnected page only gets what it missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

import redis
from starlette.concurrency import run_in_threadpool

import dsf.log
from dsf.errors import DsfError
from dsf.web.rendering import Block, blocks, changed, digest

log = dsf.log.get(__name__)

#: Id of the outermost block.
ROOT: Final = "live"
_SECOND: Final = 1.0
#: Rest after a rendering, in multiples of its duration.
_REST: Final = 19.0
#: Seconds for which a page without viewers is kept, so that a broken connection can resume.
_REMEMBERED: Final = 60.0
#: Seconds between two checks of a viewer's rights.
_RIGHTS: Final = 10.0
#: Most open pages, and most different ones.
MAX_CLIENTS: Final = 2000
MAX_TOPICS: Final = 500
#: The same limits per viewer.
MAX_OWN_CLIENTS: Final = 250
MAX_OWN_TOPICS: Final = 50
#: Most pages that are kept without viewers.
_MAX_IDLE: Final = 10


@dataclass
class Topic:
    """One page with viewers."""

    render: Callable[[], str]
    #: Distinguishes its versions from those of another process or an earlier start.
    epoch: str = field(default_factory=lambda: secrets.token_hex(4))
    blocks: dict[str, Block] = field(default_factory=dict)
    digest: str = ""
    #: Why it cannot be rendered now; empty if it can.
    trouble: str = ""
    version: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    #: Version -> the event with the blocks that its viewers miss, built once for all of them.
    texts: dict[int, str] = field(default_factory=dict)
    #: Monotonic time of the next rendering.
    due: float = 0.0
    clients: int = 0
    #: Monotonic time at which the last viewer left.
    left: float = 0.0
    news: asyncio.Condition = field(default_factory=asyncio.Condition)


class Live:
    """The topics of one process. It runs in one event loop and renders in its thread pool."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        #: Connections by viewer and topic.
        self._open: Counter[tuple[str, str]] = Counter()
        self._task: asyncio.Task[None] | None = None

    @property
    def clients(self) -> int:
        """Open pages."""
        return self._open.total()

    def has_room(self, who: str, key: str) -> bool:
        """Whether this viewer may follow this additional page."""
        own = {topic: number for (one, topic), number in self._open.items() if one == who}
        topics = {topic for _, topic in self._open}
        return (
            self.clients < MAX_CLIENTS
            and sum(own.values()) < MAX_OWN_CLIENTS
            and (key in topics or len(topics) < MAX_TOPICS)
            and (key in own or len(own) < MAX_OWN_TOPICS)
        )

    async def follow(
        self, who: str, key: str, render: Callable[[], str], allowed: Callable[[], bool], seen: str, last_id: str
    ) -> AsyncIterator[dict[str, str]]:
        """Events for one open page while it is `allowed`.

        `who` is the viewer: see `has_room`. `render` makes the live part; `seen` is the digest of the loaded page,
        `last_id` the id of the newest event before the connection broke. Both functions block.
        """
        self._forget()
        topic = self._topics.setdefault(key, Topic(render))
        topic.clients += 1
        self._open[who, key] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_rendering())
        try:
            known, told = _version(topic, last_id), ""
            if topic.clients == 1 or (not last_id and seen != topic.digest):
                # The stored state is older than this loaded page: without viewers, or right after an action.
                await self._news(topic)
            first, due = True, time.monotonic() + _RIGHTS
            while True:
                if time.monotonic() >= due:
                    if not await run_in_threadpool(allowed):
                        return
                    due = time.monotonic() + _RIGHTS
                if topic.trouble != told:
                    told = topic.trouble
                    yield {"event": "trouble", "data": json.dumps({"text": told})}
                if topic.version and (first or known != topic.version):
                    # After an event, the digest of the loaded page is obsolete.
                    wanted = self._missed(topic, known, seen if first and not last_id else "")
                    known, first = topic.version, False
                    if wanted:
                        yield {"event": "patch", "id": f"{topic.epoch}-{known}", "data": wanted}
                else:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(0.0, due - time.monotonic())):
                            await self._news(topic)
        finally:
            topic.clients -= 1
            self._open[who, key] -= 1
            if not self._open[who, key]:
                del self._open[who, key]
            topic.left = time.monotonic()

    @staticmethod
    def _missed(topic: Topic, known: int, seen: str) -> str:
        """Ids and HTML of the blocks that a page of this version misses, as JSON; empty if none."""
        if known == topic.version or (seen and seen == topic.digest):
            return ""
        if known not in topic.texts:
            topic.texts[known] = json.dumps(_late(topic, known))
        return topic.texts[known]

    @staticmethod
    async def _news(topic: Topic) -> None:
        async with topic.news:
            await topic.news.wait()

    def _forget(self) -> None:
        """Drop topics without viewers after a while, or immediately if there are many."""
        idle = [(one.left, key) for key, one in self._topics.items() if not one.clients]
        since = time.monotonic() - _REMEMBERED
        for number, (left, key) in enumerate(sorted(idle, reverse=True)):
            if left < since or number >= _MAX_IDLE:
                del self._topics[key]

    async def _keep_rendering(self) -> None:
        while watched := [one for one in self._topics.values() if one.clients]:
            now = time.monotonic()
            topic = min(watched, key=lambda one: one.due)
            if topic.due > now:
                await asyncio.sleep(min(_SECOND, topic.due - now))
                continue
            topic.due = now + _SECOND
            rendered = await run_in_threadpool(_rendered, topic.render)
            _take(topic, rendered)
            async with topic.news:
                topic.news.notify_all()
            await asyncio.sleep(_REST * rendered.cost)

    async def close(self) -> None:
        """Stop rendering."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


def _version(topic: Topic, last_id: str) -> int:
    epoch, _, number = last_id.partition("-")
    if epoch != topic.epoch or not (number.isascii() and number.isdigit() and len(number) < 12):
        return 0
    return int(number) if int(number) <= topic.version else 0


def _late(topic: Topic, known: int) -> dict[str, str]:
    """Ids and HTML of the blocks that changed after a version; the outermost one without a version."""
    if not known:
        return {ROOT: topic.blocks[ROOT].html}
    late = [name for name, version in topic.changes.items() if version > known and name in topic.blocks]
    inner = {child for name in late for child in _below(topic.blocks, name)}
    return {name: topic.blocks[name].html for name in late if name not in inner}


def _below(found: dict[str, Block], name: str) -> list[str]:
    children = list(found[name].children)
    return children + [deeper for child in children for deeper in _below(found, child)]


@dataclass(frozen=True)
class _Rendered:
    """Result or error of a rendering; `cost` in CPU seconds."""

    cost: float
    blocks: dict[str, Block] | None = None
    trouble: str = ""


def _rendered(render: Callable[[], str]) -> _Rendered:
    began = time.thread_time()
    found, trouble = None, ""
    try:
        found = blocks(render())
    except (redis.RedisError, DsfError) as error:
        trouble = str(error) or type(error).__name__
    except Exception as error:
        # One page failed; the others continue.
        log.exception("a page cannot be rendered")
        trouble = type(error).__name__
    return _Rendered(time.thread_time() - began, found, trouble)


def _take(topic: Topic, rendered: _Rendered) -> None:
    topic.trouble = rendered.trouble
    if rendered.blocks is None:
        return
    names = changed(topic.blocks, rendered.blocks)
    topic.blocks = rendered.blocks
    if names:
        topic.version += 1
        topic.changes = {name: version for name, version in topic.changes.items() if name in rendered.blocks}
        topic.changes.update(dict.fromkeys(names, topic.version))
        topic.texts.clear()
        topic.digest = digest(topic.blocks[ROOT].html)
