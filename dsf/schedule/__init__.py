"""The parts of beat: dispatch (`dispatch`, `limiter`), leader lock (`lock`), metrics (`stats`).

`dsf.beat_schedule` combines them into Celery's scheduler.
"""
