"""The agent: one cluster's Celery worker, which runs the cycles of its scorers.

main          makes the objects below and starts the worker with its boot steps
config        watches the delivered summaries of scorers
ticks         checks the messages of the cluster's queue
fairqueue     decides which waiting tick gets a thread: shares by namespace
cycles        runs cycles: the stages, each a task, and the rules which cycle runs
secrets       reads tokens and the signing key, at each use
kube          reads ConfigMap and Secrets from the cluster's API server, and requests tokens
resultmemory  shares the memory for last results among namespaces
outbox        signs results and puts them into the cluster's mailbox on the hub
metrics       the agent's own /metrics, and the readiness file
resultserver  serves the last results of scorers to `dsf explain` in the same pod
relay         connects to Redis through the hub's API server
check         `dsf agent --check`: tests the way to the hub step by step
"""
