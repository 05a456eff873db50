"""The command line, `dsf`.

`main` puts the commands together; each command is in a module of its own name, but for `changes` (in `history`), `sync`
(in `rescore`), `version` and `crds` (in `main`). `context` lets commands find a running demo, `session` opens settings
and Redis for a command, `output` prints tables, JSON and YAML.

Commands import what they need when they run: `dsf --help` loads neither Redis nor Celery nor Kubernetes.
"""
