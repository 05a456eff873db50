"""The common base of every process of the project, whatever its role.

launch          runs `python -m dsf.ROLE`: from the settings of the environment to an exit code
service         the services of which a process of the hub consists
threads         threads that start again after an unexpected exception
outage          logs an outage once
children        child processes that end with this one
runtimemetrics  metrics of the process itself: CPU, memory, versions
gctuning        less work for Python's garbage collector
hubclock        the clock of the hub, which is that of its Redis
valuecache      values that are made once for all concurrent callers
turns           turns at a server that answers few requests at a time
clienttoken     the token that clients send, and a limit of wrong ones for each client
tracing         traces of cycles by OpenTelemetry
"""
