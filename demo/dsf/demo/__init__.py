"""The demo: two managed clusters with real Prometheus servers and real scores, on one machine.

Read in this order:

command    `dsf demo`, which `dsf --help` shows where this distribution is installed
fleet      all that runs: the hub with its agents (`dsf.up`), and what follows
services   a Prometheus and a node exporter for each cluster, and the scoring services of `samples`
agent      the agent of a cluster, which waits for the first data of its Prometheus
extras     the scoring services of `--with`
manifests  the folder of manifests, copied from `demo/manifests`
debian     Prometheus and node exporter, from PATH or a Debian package
report     the state of each pair, and why a score is missing
live       the output while it runs
screen     the table that fits a terminal
"""
