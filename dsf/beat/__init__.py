"""Beat sends ticks when they are due.

dispatch     turns due times into ticks
queueshares  shares the clusters' queues among namespaces
limiter      fleet-wide rate limits
stats        beat's counters as metrics

`dsf.beat_schedule` is the Celery scheduler that uses this package, with the lock that elects the active beat.
"""
