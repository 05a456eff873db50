"""Fleet-wide rate limits for a scorer that many clusters share, such as an LLM endpoint.

If more pairs are due than the limit allows, some must miss slots. A token bucket would always reject the same clusters,
because slots repeat in the same order. Therefore each pair takes a ticket: the time at which it may run. Tickets are
issued in order of request, and stay valid while their pairs miss slots, so that all pairs run in turn. The active beat
keeps the tickets in memory; another beat that takes over issues new ones.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import dsf.log
from dsf.api.fieldtypes import parse_rate

log = dsf.log.get(__name__)

#: Seconds after which an unused ticket expires. A working beat is less late than that. Without expiry, all waiting
#: tickets would be due in one burst after beat or the pairs were paused.
TICKET_LIFE_SECONDS = 5.0


@dataclass
class _ScorerTickets:
    """The unused tickets of one scorer."""

    rate: str
    #: Seconds between two tickets.
    gap_seconds: float
    #: Time of the ticket that is issued next (unix seconds).
    next_ticket_at: float
    #: Pair -> time of its ticket (unix seconds).
    tickets: dict[str, float] = field(default_factory=dict)


class RateLimiter:
    """Issues tickets to pairs, whose times are evenly spaced for each scorer."""

    def __init__(self) -> None:
        self._tickets_by_scorer: dict[str, _ScorerTickets] = {}

    def reserve_time(self, scorer: str, pair: str, rate: str, now: float) -> float:
        """Return the time of the pair's ticket (unix seconds). Issues a ticket if the pair has none.

        `rate` is a text such as `10/s`. A changed rate applies immediately and invalidates earlier tickets.
        """
        scorer_tickets = self._tickets_by_scorer.get(scorer)
        if scorer_tickets is None or scorer_tickets.rate != rate:
            scorer_tickets = self._tickets_by_scorer[scorer] = _ScorerTickets(rate, _parse_gap_seconds(rate), now)
        run_at = scorer_tickets.tickets.get(pair)
        if run_at is not None and run_at >= now - TICKET_LIFE_SECONDS:
            return run_at
        run_at = max(scorer_tickets.next_ticket_at, now)
        scorer_tickets.next_ticket_at = run_at + scorer_tickets.gap_seconds
        scorer_tickets.tickets[pair] = run_at
        return run_at

    def has_ticket(self, scorer: str, pair: str) -> bool:
        """True if the pair has a ticket, which means that an earlier tick was postponed."""
        scorer_tickets = self._tickets_by_scorer.get(scorer)
        return scorer_tickets is not None and pair in scorer_tickets.tickets

    def use_ticket(self, scorer: str, pair: str, next_due: float) -> None:
        """Remove the ticket of a pair that runs now. `next_due` is the next due time of the pair (unix seconds).

        If the next ticket is later than `next_due`, issue it to the pair now. Otherwise a pair whose slot comes soon
        after its run would request a ticket before other pairs, and run more often than they do.
        """
        scorer_tickets = self._tickets_by_scorer.get(scorer)
        if scorer_tickets is None or scorer_tickets.tickets.pop(pair, None) is None:
            return
        if scorer_tickets.next_ticket_at > next_due:
            scorer_tickets.tickets[pair] = scorer_tickets.next_ticket_at
            scorer_tickets.next_ticket_at += scorer_tickets.gap_seconds

    def remove_expired_tickets(self, now: float) -> None:
        """Remove expired tickets at `now` (unix seconds), such as those of removed or paused pairs."""
        for scorer, scorer_tickets in list(self._tickets_by_scorer.items()):
            scorer_tickets.tickets = {
                pair: run_at for pair, run_at in scorer_tickets.tickets.items() if run_at >= now - TICKET_LIFE_SECONDS
            }
            if not scorer_tickets.tickets and scorer_tickets.next_ticket_at < now:
                del self._tickets_by_scorer[scorer]


@functools.lru_cache(maxsize=4096)
def _parse_gap_seconds(rate: str) -> float:
    """Return the seconds between two runs at this rate; 0, which means no limit, for an invalid rate.

    The hub has already validated the rates of users.
    """
    try:
        return 1 / parse_rate(rate)
    except ValueError as error:
        log.warning("rate limit cannot be read", rate=rate, problem=str(error))
        return 0.0
