"""Beat: dispatch (`dispatch`, `limiter`), and metrics (`stats`).

`dsf.beat_schedule` makes it Celery's scheduler, with the lock that elects the active one.
"""
