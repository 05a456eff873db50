"""Infrastructure that all processes of the project share.

launch          runs `python -m dsf.ROLE`: reads the settings, runs the role and exits with its code
service         the interface of the hub's services
threads         threads that restart their work after an unexpected exception
outage          logs the start and the end of an outage once
children        child processes that end with this one
runtimemetrics  metrics of the process itself: CPU, memory, versions
gctuning        tunes Python's garbage collector
hubclock        reads the hub's clock, which is the clock of its Redis
valuecache      computes a value once for all concurrent callers
shares          shares of namespaces in an agent's threads, mailbox and queue
clientlimiter   limits concurrent requests to a server, fairly between clients
clienttoken     checks the token that clients send, and limits wrong tokens
tracing         traces cycles by OpenTelemetry
"""
