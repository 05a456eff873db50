"""Beat: dispatch (`dispatch`, `limiter`), metrics (`stats`), and the process (`main`).

`dsf.beat_schedule` makes it Celery's scheduler, with the lock that elects the active one.
"""
