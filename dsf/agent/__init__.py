"""The agent: one cluster's Celery worker, which runs the cycles of its scorers.

config    the delivered summaries, watched
secrets   tokens and the signing key, read when they are used
spool     payloads between two stages, on the agent's own disk
cycles    this cluster's cycles, without Celery: the stages of `dsf.cycle` and the spool between them
flow      the same as Celery tasks: hand-over to the next stage, retries, expired messages
outbox    sends results to the hub
metrics   the agent's own /metrics; exposition serves them
probes    the readiness file
steps     joins all of it with a connection of the worker
runtime   the one set of these objects that a process has
main      starts the worker
"""
