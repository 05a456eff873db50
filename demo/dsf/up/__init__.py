"""`dsf up`: the hub on a folder of manifests with all its processes, on one machine.

Read in this order:

command         `dsf up`, which `dsf --help` shows where this distribution is installed
stack           the processes of the hub, and one agent for each accepted cluster
supervisor      starts, restarts and ends processes
embedded_redis  a Redis for this user
statefolder     the folder of their state
ports           free ports
httpcheck       checks whether a server responds
"""
