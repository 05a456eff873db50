"""What open pages are sent: what they have not got, after a connection that broke as well."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis

from dsf.web import live as under_test
from dsf.web.live import ROOT, Live
from dsf.web.rendering import blocks, digest

#: Seconds.
PATIENCE = 20


class Page:
    """A page of two blocks that a test changes."""

    def __init__(self) -> None:
        self.parts = {"a": "1", "b": "1"}
        self.rendered: list[float] = []
        self.problem: Exception | None = None

    def render(self) -> str:
        self.rendered.append(time.monotonic())
        if self.problem is not None:
            raise self.problem
        inner = "".join(f"<!--b {name}--><p>{name}{text}</p><!--e-->" for name, text in self.parts.items())
        return f"<!--b live--><div>{inner}</div><!--e-->"

    @property
    def digest(self) -> str:
        return digest(blocks(self.render())[ROOT].html)


class Visitor:
    """One connection."""

    def __init__(
        self, live: Live, page: Page, seen: str = "", last_id: str = "", key: str = "page", who: str = "ann"
    ) -> None:
        self.allowed = True
        self.stream: AsyncIterator[dict[str, str]] = live.follow(
            who, key, page.render, lambda: self.allowed, seen, last_id
        )

    async def event(self) -> tuple[str, Any, str]:
        """Kind, data and id of the next one."""
        found = await asyncio.wait_for(anext(self.stream), PATIENCE)
        return found["event"], json.loads(found["data"]), found.get("id", "")

    async def leave(self) -> None:
        await self.stream.aclose()  # type: ignore[attr-defined]


def run(scene: Callable[[Live, Page], Awaitable[None]]) -> None:
    async def play() -> None:
        live = Live()
        try:
            await scene(live, Page())
        finally:
            await live.close()

    asyncio.run(play())


def test_only_what_changed_is_sent() -> None:
    async def scene(live: Live, page: Page) -> None:
        visitor = Visitor(live, page)
        assert (await visitor.event())[:2] == ("patch", {"live": "<div><p>a1</p><p>b1</p></div>"})
        page.parts["b"] = "2"
        assert (await visitor.event())[:2] == ("patch", {"b": "<p>b2</p>"})

    run(scene)


def test_a_page_that_was_loaded_with_this_is_sent_nothing_until_something_changes() -> None:
    async def scene(live: Live, page: Page) -> None:
        visitor = Visitor(live, page, page.digest)
        waiting = asyncio.create_task(visitor.event())
        while len(page.rendered) < 3:
            await asyncio.sleep(0.05)
        assert not waiting.done()
        page.parts["a"] = "2"
        assert (await waiting)[1] == {"a": "<p>a2</p>"}

    run(scene)


def test_a_page_that_is_newer_than_what_others_see_does_not_go_back() -> None:
    """As that of somebody who did something, while others look at the same page."""

    async def scene(live: Live, page: Page) -> None:
        other = Visitor(live, page)
        await other.event()
        page.parts["a"] = "2"
        waiting = asyncio.create_task(Visitor(live, page, page.digest).event())
        assert (await other.event())[1] == {"a": "<p>a2</p>"}
        page.parts["a"] = "3"
        assert (await waiting)[1] == {"a": "<p>a3</p>"}

    run(scene)


def test_a_connection_that_broke_goes_on_where_it_was() -> None:
    """Also that of the only visitor: what it has got is still known."""

    async def scene(live: Live, page: Page) -> None:
        loaded = page.digest
        visitor = Visitor(live, page, loaded)
        waiting = asyncio.create_task(visitor.event())
        while len(page.rendered) < 2:
            await asyncio.sleep(0.05)
        page.parts["a"] = "2"
        _, _, last_id = await waiting
        await visitor.leave()
        assert live.clients == 0
        page.parts["b"] = "2"
        back = Visitor(live, page, loaded, last_id)
        kind, data, newer = await back.event()
        assert (kind, data) == ("patch", {"b": "<p>b2</p>"})
        assert newer.partition("-")[0] == last_id.partition("-")[0]

    run(scene)


def test_what_changed_back_meanwhile_is_sent() -> None:
    """The page looks again as it was loaded, and the visitor has seen something else since."""

    async def scene(live: Live, page: Page) -> None:
        loaded = page.digest
        # The second id is of another process, as after a restart of the server.
        for number, last_id in enumerate(("", "ffffffff-7")):
            page.parts["a"] = "1"
            visitor = Visitor(live, page, "", "", f"page {number}")
            await visitor.event()
            page.parts["a"] = "2"
            _, _, id_ = await visitor.event()
            await visitor.leave()
            page.parts["a"] = "1"
            back = Visitor(live, page, loaded, last_id or id_, f"page {number}")
            _, data, _ = await back.event()
            assert "<p>a1</p>" in "".join(data.values())
            await back.leave()

    run(scene)


def test_trouble_is_said_and_goes() -> None:
    async def scene(live: Live, page: Page) -> None:
        visitor = Visitor(live, page)
        await visitor.event()
        page.problem = redis.ConnectionError("refused")
        assert (await visitor.event())[:2] == ("trouble", {"text": "refused"})
        page.problem = None
        assert (await visitor.event())[:2] == ("trouble", {"text": ""})

    run(scene)


@pytest.mark.parametrize("changes", [True, False], ids=["while it changes", "while nothing happens"])
def test_a_page_ends_when_somebody_may_not_see_it_any_more(monkeypatch: pytest.MonkeyPatch, changes: bool) -> None:
    monkeypatch.setattr(under_test, "_RIGHTS", 0.2)

    async def scene(live: Live, page: Page) -> None:
        visitor, other = Visitor(live, page), Visitor(live, page)
        await visitor.event()
        await other.event()
        visitor.allowed = False
        if changes:
            page.parts["a"] = "2"

        async def see_all() -> None:
            while True:
                await visitor.event()
                page.parts["a"] += "2"

        with pytest.raises(StopAsyncIteration):
            await see_all()
        assert live.clients == 1
        page.parts["a"] = "3"
        while (await other.event())[1] != {"a": "<p>a3</p>"}:
            pass

    run(scene)


def test_nobody_can_take_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"MAX_CLIENTS": 6, "MAX_TOPICS": 4, "MAX_OWN_CLIENTS": 3, "MAX_OWN_TOPICS": 2}
    for name, limit in limits.items():
        monkeypatch.setattr(under_test, name, limit)

    async def scene(live: Live, page: Page) -> None:
        # One that nobody holds is closed.
        held = []

        async def opened(who: str, key: str) -> Visitor:
            assert live.has_room(who, key)
            visitor = Visitor(live, page, key=key, who=who)
            await visitor.event()
            held.append(visitor)
            return visitor

        first = await opened("ann", "1")
        await opened("ann", "2")
        # No third page, but one of them once more.
        assert not live.has_room("ann", "3")
        await opened("ann", "2")
        assert not live.has_room("ann", "2")
        await opened("bob", "3")
        await opened("bob", "4")
        # As many pages as there may be: what others look at may be seen too.
        assert not live.has_room("eve", "5")
        await opened("eve", "4")
        assert live.clients == 6
        assert not live.has_room("eve", "4")
        await first.leave()
        assert live.has_room("eve", "4")
        assert live.has_room("eve", "5")
        assert live.has_room("ann", "5")

    run(scene)


def test_pages_that_nobody_looks_at_are_not_rendered_and_few_are_remembered() -> None:
    async def scene(live: Live, page: Page) -> None:
        for number in range(15):
            visitor = Visitor(live, page, key=f"page {number}")
            await visitor.event()
            await visitor.leave()
        assert live.clients == 0
        assert len(live._topics) <= 11
        other = Page()
        visitor = Visitor(live, other, key="other")
        await visitor.event()
        before = len(page.rendered)
        other.parts["a"] = "2"
        await visitor.event()
        assert len(page.rendered) == before

    run(scene)
