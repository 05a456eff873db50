"""The command line, `dsf`.

main            puts the commands together; `dsf version` and `dsf crds`
script          the console script
group           the command group with error handling and exit codes
streams         standard output and standard error
context         finds a running demo
session         settings and Redis client of a command
output          prints tables, JSON and YAML
duration        parses durations and times in options
kubehub         the hub in kubectl's context: reads through its API server, acts as annotations
localuser       name of the local user for the list of changes
processes       commands that run one process of the system
status          `dsf status`
statusreport    the report that `dsf status` prints
scores          `dsf scores`
history         `dsf history` and `dsf changes`
schedule        `dsf schedule`
rescore         `dsf rescore` and `dsf sync`
credentials     `dsf credentials`
explain         `dsf explain`
dryrun          runs the cycle that `dsf explain` prints, without publishing it
delivery        reads an agent's summaries and secrets, for commands that run stages
migrate         `dsf migrate`
migrationcheck  the check that `dsf migrate` prints

Commands import what they need when they run: `dsf --help` loads neither Redis nor Celery nor Kubernetes.
"""
