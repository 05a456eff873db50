"""A played agent (`bench.player`): from a tick to its result, without a cycle between them."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.redisline import Connection, command
from dsf import keys, messages
from dsf.settings import settings

if TYPE_CHECKING:
    from bench.player import Player

ITEMS = 10
#: Seconds until a result without a free slot is sent again, as in `dsf.agent.outbox`.
_AGAIN = 0.25
#: Share of the cycles of a bad scorer that fail.
_FAILING = 0.5
#: Scorer, run id and deadline of a tick.
_TICK = re.compile(rb'\[\[\\"([^"\\]+)\\",\s*\\"([^"\\]+)\\",\s*([0-9.]+)\]')


@dataclass(frozen=True)
class SentResult:
    """A result that was sent without a response so far, or that waits for a slot."""

    scorer: str
    run: str
    text: bytes
    is_score: bool
    #: Number of attempts without a free slot.
    tries: int = 0


class PlayedAgent:
    """The connections of a cluster: `taking` waits for ticks in its queue, `giving` puts results into its mailbox.

    Both are None while Redis is down.
    """

    def __init__(self, player: Player, name: str) -> None:
        self.name = name
        self.taking: Connection | None = None
        self.giving: Connection | None = None
        self.is_quiet = False
        self._player = player
        self._slots = keys.mail_slots(name)
        self._flag = keys.mail_flag(name)
        self._pop = command("BRPOP", keys.spoke_queue(name), str(settings().redis_polling_interval))
        self._values: Counter[str] = Counter()
        # Scorer -> its first slot; slot -> the newest result in it, which the hub may have taken.
        self._homes: dict[str, int] = {}
        self._written: dict[int, SentResult] = {}
        self._others = itertools.cycle(range(len(self._slots)))
        # Requests without a response, with their slots, in order. The first response to the first of them is kept
        # until the second one has arrived.
        self._sent: deque[tuple[SentResult, int]] = deque()
        self._responses: list[object] = []

    def start_receiving(self, connection: Connection) -> None:
        """Receive ticks over this connection from now on."""
        connection.send(self._pop)
        self.taking = connection

    def start_sending(self, connection: Connection) -> None:
        """Send results over this connection from now on, first those without a response."""
        waiting = [result for result, _ in self._sent]
        self._sent, self._responses = deque(), []
        self.giving = connection
        for result in waiting:
            self._player.counts["again"] += 1
            self._put(result)

    def handle_ticks(self, connection: Connection) -> None:
        """Handle ticks, and the ends of waits without a tick."""
        for response in connection.read_responses():
            if isinstance(response, list):
                tick = _TICK.search(response[1])
                if tick is None:
                    raise SystemExit(f"no tick: {response[1]!r}")
                self._player.counts["ticks"] += 1
                self._run_cycle(tick[1].decode(), tick[2].decode(), float(tick[3]))
            connection.send(self._pop)

    def handle_responses(self, connection: Connection) -> None:
        """Handle responses. Each result has two: one for the slot, and one for the flag."""
        for response in connection.read_responses():
            self._responses.append(response)
            if len(self._responses) < 2:
                continue
            # The result is known to be stored only now.
            (result, slot), is_in = self._sent.popleft(), self._responses[0] is not None
            self._responses = []
            if is_in:
                self._written[slot] = result
                self._player.put(self.name, result.scorer, result.run)
                continue
            # Until the next attempt the hub has time to take an older score of this scorer.
            is_soon = result.tries == (0 if self._find_older_slot(result) is None else 1)
            again = replace(result, tries=result.tries + 1)
            self._player.schedule(0.0 if is_soon else _AGAIN, lambda again=again: self._put(again))  # type: ignore[misc]

    def _run_cycle(self, scorer: str, run: str, deadline: float) -> None:
        """Send the result of a cycle of this tick."""
        if deadline <= time.time():
            self._player.counts["expired"] += 1
            self._send(scorer, run, outcome="skipped", reason="expired", message="it waited in the queue")
        elif scorer in self._player.bad and random.random() < _FAILING:
            self._player.counts["failed"] += 1
            message = f"the scoring API of {scorer} answered with status 500: out of order"
            timings = {"fetch": 0.012345, "score": 0.023456}
            self._send(
                scorer, run, outcome="error", stage="score", reason="http_error", message=message, timings=timings
            )
        else:
            if random.random() < self._player.changing:
                self._values[scorer] = (self._values[scorer] + 1) % 80
            self._send(
                scorer,
                run,
                outcome="ok",
                results=[({"node": f"node{number}"}, self._values[scorer] + number + 0.5) for number in range(ITEMS)],
                timings={"fetch": 0.012345, "score": 0.023456, "publish": 0.001234},
                counts={"series": 100, "bytes_in": 221_000, "bytes_out": 221_000, "results": ITEMS},
            )

    def _send(self, scorer: str, run: str, **result_fields: Any) -> None:
        result = messages.Result.model_construct(
            cluster=self.name,
            scorer=scorer,
            run=run,
            at=time.time(),
            agent=f"agent-{self.name}",
            version="1.0.0",
            **result_fields,
        )
        text = messages.sign(result, self._player.key(self.name))
        self._put(SentResult(scorer, run, text, result_fields["outcome"] == "ok"))

    def _put(self, result: SentResult) -> None:
        slot, is_replaced = self._choose_slot(result)
        self._sent.append((result, slot))
        if self.giving is not None:
            data = command("SET", self._slots[slot], result.text, *([] if is_replaced else ["NX"]))
            try:
                self.giving.send(data + command("SET", self._flag, str(slot)))
            except OSError:
                self._player.handle_lost_connection(self, self.giving)

    def _choose_slot(self, result: SentResult) -> tuple[int, bool]:
        """Return the slot of a result, and True if it replaces the value there, which must be an older score of the
        scorer.
        """
        home = self._homes.setdefault(result.scorer, len(self._homes) % len(self._slots))
        older = self._find_older_slot(result)
        if older is not None and result.tries > 1:
            return older, True
        return (next(self._others) if result.tries and older is None else home), False

    def _find_older_slot(self, result: SentResult) -> int | None:
        """Return a slot with an older score of this result's scorer, which the hub may have taken."""
        busy = {slot for _, slot in self._sent}
        for slot, old in self._written.items():
            if result.is_score and old.is_score and old.scorer == result.scorer and old.run < result.run:
                return None if slot in busy else slot
        return None
