"""Infrastructure that all processes of the project share.

launch          runs `python -m dsf.ROLE`: from the settings of the environment to an exit code
service         the interface of the hub's services
threads         threads that restart their work after an unexpected exception
outage          logs an outage once
children        child processes that end with this one
runtimemetrics  metrics of the process itself: CPU, memory, versions
gctuning        tunes Python's garbage collector
hubclock        the hub's clock, which is its Redis' clock
valuecache      computes a value once for all concurrent callers
shares          says how much of threads, mailbox and queue of an agent a namespace may use
turns           limits concurrent requests to a server, fairly between clients
clienttoken     checks the token that clients send, and limits wrong ones
tracing         traces of cycles by OpenTelemetry
"""
