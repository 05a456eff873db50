"""Beat: dispatch (`dispatch`, `limiter`), leader lock (`lock`), metrics (`stats`), and the process (`main`).

`dsf.beat_schedule` combines them into Celery's scheduler.
"""
