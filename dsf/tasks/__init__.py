"""The Celery tasks. `dsf.agent` and `dsf.results` do their work.

cycle   the tasks of an agent: a cycle, and its stages fetch, score and publish
ingest  the only task of the hub
"""
