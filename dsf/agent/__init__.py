"""The agent: one cluster's Celery worker, which runs the cycles of its scorers.

config    watches the delivered summaries
secrets   tokens and the signing key, read at each use
ticks     what a message of the cluster's queue may be
cycles    cycles: their stages, each a task, what these keep between them, and which run
outbox    signs results and puts them into the cluster's mailbox on the hub
metrics   the agent's own /metrics, and the readiness file
main      makes these, with what sources keep between cycles, and starts the worker with its boot steps
"""
