"""The agent: one cluster's Celery worker, which runs the cycles of its scorers.

config    watches the delivered summaries
secrets   tokens and the signing key, read at each use
spool     payloads between two stages, on the agent's own disk
cycles    cycles without Celery: the stages of `dsf.cycle` and the spool between them
flow      cycles as Celery tasks: hand-over to the next stage, retries, expired messages
outbox    sends results to the hub
metrics   the agent's own /metrics; exposition serves them
probes    the readiness file
steps     attaches these to the worker's connection
runtime   the process-wide instances
main      starts the worker
"""
