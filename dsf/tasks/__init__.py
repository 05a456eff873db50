"""The Celery tasks, and nothing else: what they do is in `dsf.agent` and `dsf.results`."""
