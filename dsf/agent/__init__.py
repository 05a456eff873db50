"""The agent: one cluster's Celery worker, which runs the cycles of its scorers.

config    watches the delivered summaries
secrets   tokens and the signing key, read at each use
ticks     what a message of the cluster's queue may be
cycles    cycles: their stages, each a task, and what these keep between them
running   what runs, and the scoring request between two stages, in memory or in a file
outbox    signs results and puts them into the cluster's mailbox on the hub
metrics   the agent's own /metrics, and the readiness file
steps     attaches these to the worker's connection
runtime   the process-wide instances, and what sources keep between cycles
main      starts the worker
"""
