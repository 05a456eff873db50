"""Fleet-wide rate limits for a scorer that many clusters share, such as an LLM endpoint.

If more pairs are due than the limit allows, some must miss slots. A token bucket would always reject the same clusters,
because slots repeat in the same order. Therefore each pair takes a ticket: the time at which it may run, in order of
request. A ticket stays valid while its pair misses slots, so all pairs run in turn. Tickets are in the memory of the
active beat; a takeover discards them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import dsf.log
from dsf.api.fieldtypes import parse_rate

log = dsf.log.get(__name__)

#: Seconds after its time for which a ticket is valid. A working beat is never that late. Tickets expire, because all
#: waiting tickets would otherwise be due in one burst after beat or the pairs were paused.
TICKET_LIFE = 5.0


@dataclass
class _ScorerTickets:
    """The issued tickets of one scorer, and the time of the next one."""

    rate: str
    #: Seconds between two tickets.
    gap_seconds: float
    #: Time of the next ticket (unix seconds).
    next_ticket_at: float
    #: Pair -> time of its ticket (unix seconds).
    tickets: dict[str, float] = field(default_factory=dict)


class RateLimiter:
    """Assigns run times to pairs, evenly spaced for each scorer."""

    def __init__(self) -> None:
        self._tickets_by_scorer: dict[str, _ScorerTickets] = {}

    def reserve_time(self, scorer: str, pair: str, rate: str, now: float) -> float:
        """Return the time (unix seconds) at which this pair may run, which is constant until the ticket is used.

        `rate` is a text such as `10/s`. A new rate applies immediately and voids old tickets.
        """
        scorer_tickets = self._tickets_by_scorer.get(scorer)
        if scorer_tickets is None or scorer_tickets.rate != rate:
            scorer_tickets = self._tickets_by_scorer[scorer] = _ScorerTickets(rate, _parse_gap_seconds(rate), now)
        run_at = scorer_tickets.tickets.get(pair)
        if run_at is not None and run_at >= now - TICKET_LIFE:
            return run_at
        run_at = max(scorer_tickets.next_ticket_at, now)
        scorer_tickets.next_ticket_at = run_at + scorer_tickets.gap_seconds
        scorer_tickets.tickets[pair] = run_at
        return run_at

    def has_ticket(self, scorer: str, pair: str) -> bool:
        """True if the pair has a ticket, because it was postponed before."""
        scorer_tickets = self._tickets_by_scorer.get(scorer)
        return scorer_tickets is not None and pair in scorer_tickets.tickets

    def use(self, scorer: str, pair: str, next_due: float) -> None:
        """Use the ticket of a pair that runs now. `next_due` is the next due time of the pair.

        If tickets beyond that slot are issued, the pair takes its next ticket now. Otherwise a pair whose slot comes
        soon after its run would queue again before other pairs, and run more often.
        """
        scorer_tickets = self._tickets_by_scorer.get(scorer)
        if scorer_tickets is None or scorer_tickets.tickets.pop(pair, None) is None:
            return
        if scorer_tickets.next_ticket_at > next_due:
            scorer_tickets.tickets[pair] = scorer_tickets.next_ticket_at
            scorer_tickets.next_ticket_at += scorer_tickets.gap_seconds

    def prune(self, now: float) -> None:
        """Remove expired tickets at `now` (unix seconds), such as those of removed or paused pairs."""
        for scorer, scorer_tickets in list(self._tickets_by_scorer.items()):
            scorer_tickets.tickets = {
                pair: run_at for pair, run_at in scorer_tickets.tickets.items() if run_at >= now - TICKET_LIFE
            }
            if not scorer_tickets.tickets and scorer_tickets.next_ticket_at < now:
                del self._tickets_by_scorer[scorer]


@functools.lru_cache(maxsize=4096)
def _parse_gap_seconds(rate: str) -> float:
    """Return the seconds between two runs. An unreadable rate means no limit, because the hub validates user input."""
    try:
        return 1 / parse_rate(rate)
    except ValueError as error:
        log.warning("rate limit cannot be read", rate=rate, problem=str(error))
        return 0.0
