"""The parts of beat: deciding what is sent (`dispatch`, `limiter`), being the only one (`lock`), counting (`stats`).

`dsf.beat_schedule` puts them together as Celery's scheduler.
"""
