"""What every process of the project needs, whatever its role.

launch       `python -m dsf.ROLE`: from the settings of the environment to an exit code
memory       less work for Python's garbage collector
service      what a process of the hub consists of
children     child processes that end with this one
shared       what is made once for all who ask meanwhile
threads      threads that start again after an unexpected exception
connections  listen addresses, and servers with a limited number of connections and a deadline for each header
exposition   /metrics and the probes of Kubernetes
"""
