"""The agent: one cluster's Celery worker, which runs the cycles of its scorers.

config    the delivered summaries, watched
secrets   tokens and the signing key, read when they are used
spool     payloads between two stages, on the agent's own disk
cycle     what fetch, score and publish do, without Celery
flow      the same as Celery tasks: retries, the end of a chain, expired messages
outbox    sends results to the hub
metrics   the agent's own /metrics; exposition serves them
probes    liveness and readiness files
runtime   the one set of these objects that a process has
main      starts the worker
"""
