"""Sends ticks when they are due.

dispatch     decides about due pairs, and sends their ticks
queueshares  divides the clusters' queues among namespaces
limiter      enforces fleet-wide rate limits
stats        exposes beat's counters as metrics

`dsf.beat_schedule` is the Celery scheduler that uses this package, with the lock that elects the active beat.
"""
