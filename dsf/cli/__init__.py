"""The command line, `dsf`.

main            assembles the commands; `dsf version` and `dsf crds`
script          the console script
group           the command group with error handling and exit codes
streams         standard output and standard error
context         finds running demos, and stores the options that select a hub
session         settings, Redis client and data source of a command
output          prints tables, JSON and YAML
duration        parses durations and times in options
kubehub         client of the hub in kubectl's context: reads through the API server, requests acts by annotations
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
delivery        reads an agent's summaries and Secrets, for commands that run stages
migrate         `dsf migrate`
migrationcheck  the check that `dsf migrate` prints

Each command imports its modules when it runs, so that `dsf --help` loads neither Redis nor Celery nor Kubernetes.
"""
