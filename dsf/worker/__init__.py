"""Celery's worker and what surrounds it: its commands, messages, liveness, events, remote control, and Flower.

commands       Celery's own commands: the role of each, and Flower's options
routing        which queue a call of a task goes to
liveness       the liveness file, and a consumer that touches it while it waits for Redis
events         what workers tell Flower, sent together
remotecontrol  `celery status`, `inspect` and `control`, without rights that an agent must not have
flower         the filter for events that Flower reads

`dsf.celery` imports only `commands`. What else a role needs it names as text, so that no other process loads it.
"""
