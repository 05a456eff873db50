"""Beat: sends ticks when they are due.

dispatch  turns due times into ticks
limiter   fleet-wide rate limits
stats     beat's counters as metrics

`dsf.beat_schedule` makes it Celery's scheduler, with the lock that elects the active one.
"""
