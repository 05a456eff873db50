"""Limits concurrent requests to the API server, fairly between the clients that cause them."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from dsf.errors import BackendError


class ClientTurns:
    """Allows `turns` concurrent requests, and up to `share` of them for each client. Thread-safe.

    A request waits up to `seconds` for a free turn. Requests of clients with fewer running requests come first, then
    older requests. At most `max_requests` requests of a client run or wait.
    """

    def __init__(self, turns: int, share: int, max_requests: int, seconds: float) -> None:
        self._turns = turns
        self._share = share
        self._max_requests = max_requests
        self._seconds = seconds
        self._condition = threading.Condition()
        self._running_counts: Counter[str] = Counter()
        # Ticket of each waiting request -> its client, oldest first.
        self._client_by_ticket: dict[object, str] = {}

    @contextmanager
    def take(self, client: str) -> Iterator[None]:
        """Wait for a turn, and keep it during the block.

        Raises BackendError if no turn is free in time, or if too many requests of the client run or wait.
        """
        ticket = object()
        with self._condition:
            request_count = self._running_counts[client] + list(self._client_by_ticket.values()).count(client)
            if request_count >= self._max_requests:
                raise BackendError("the hub's API server is asked too much at a time by one client")
            self._client_by_ticket[ticket] = client
            try:
                has_turn = self._wait(ticket)
            finally:
                del self._client_by_ticket[ticket]
            if not has_turn:
                self._condition.notify_all()
                raise BackendError("the hub's API server is asked too much at a time")
            self._running_counts[client] += 1
            self._condition.notify_all()
        try:
            yield
        finally:
            with self._condition:
                self._running_counts[client] -= 1
                self._running_counts = +self._running_counts
                self._condition.notify_all()

    def _wait(self, ticket: object) -> bool:
        """Wait until the request with this ticket is next. Return False after the maximum wait."""
        deadline = time.monotonic() + self._seconds
        while not self._is_next(ticket):
            remaining_seconds = deadline - time.monotonic()
            if remaining_seconds <= 0:
                return False
            self._condition.wait(remaining_seconds)
        return True

    def _is_next(self, ticket: object) -> bool:
        """True if a turn is free, and no other request comes before the one with this ticket."""
        if self._running_counts.total() >= self._turns:
            return False
        eligible_tickets = [
            waiting_ticket
            for waiting_ticket, client in self._client_by_ticket.items()
            if self._running_counts[client] < self._share
        ]
        # `min` returns the first, which is the oldest, of equal requests.
        return (
            bool(eligible_tickets)
            and min(
                eligible_tickets,
                key=lambda waiting_ticket: self._running_counts[self._client_by_ticket[waiting_ticket]],
            )
            is ticket
        )


def find_client(address: str) -> str:
    """Return the client to which an IP address belongs: all addresses of an IPv6 /64 network are one client."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
