"""The Celery application, its commands, and the worker's liveness, events and remote control, also for Flower.

application    makes the Celery application of each role
commands       Celery's own commands: the role of each, and Flower's options
calls          the router, and calls of a cycle by users, which get a deadline and must name a known cluster
liveness       the liveness file, and a consumer that touches it while it waits for Redis
events         the worker's events for Flower, sent together
remotecontrol  `celery status`, `inspect` and `control`, without rights that an agent must not have
flower         the filter for events that Flower reads

`dsf.celery` imports only `commands`. It names all other modules as text, so that a process loads only the modules that
it needs.
"""
