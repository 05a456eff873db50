"""Limits concurrent costly requests, fairly between the clients that cause them."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from dsf.errors import BackendError, DsfError


class ClientLimiter:
    """Allows `max_running` concurrent requests, and `max_running_per_client` of each client. Thread-safe.

    A request waits up to `seconds` until it may run. Requests of clients with fewer running requests come first, then
    older requests. At most `max_requests` requests of a client run or wait.
    """

    def __init__(
        self,
        max_running: int,
        max_running_per_client: int,
        max_requests: int,
        seconds: float,
        *,
        error: type[DsfError] = BackendError,
        subject: str = "the hub's API server is asked",
    ) -> None:
        """Refuse requests with an `error`, whose message begins with `subject`."""
        self._error = error
        self._subject = subject
        self._max_running = max_running
        self._max_running_per_client = max_running_per_client
        self._max_requests = max_requests
        self._seconds = seconds
        self._condition = threading.Condition()
        self._running_counts: Counter[str] = Counter()
        # Ticket of each waiting request -> its client, oldest first.
        self._client_by_ticket: dict[object, str] = {}

    @contextmanager
    def limit(self, client: str) -> Iterator[None]:
        """Wait until a request of the client may run, and count it as running during the block.

        Raises an error if the request may not run in time, or if too many requests of the client run or wait.
        """
        ticket = object()
        with self._condition:
            request_count = self._running_counts[client] + list(self._client_by_ticket.values()).count(client)
            if request_count >= self._max_requests:
                raise self._error(f"{self._subject} too much at a time by one client")
            self._client_by_ticket[ticket] = client
            try:
                may_run = self._wait(ticket)
            finally:
                del self._client_by_ticket[ticket]
            if not may_run:
                self._condition.notify_all()
                raise self._error(f"{self._subject} too much at a time")
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
        """True if another request may run, and no other request comes before the one with this ticket."""
        if self._running_counts.total() >= self._max_running:
            return False
        eligible_tickets = [
            waiting_ticket
            for waiting_ticket, client in self._client_by_ticket.items()
            if self._running_counts[client] < self._max_running_per_client
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
