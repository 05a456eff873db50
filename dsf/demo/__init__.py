"""A whole fleet as processes on one machine, for `dsf demo` and `dsf up`.

`binaries` and `debian` find programs that are not Python; `ports` chooses free ports; `supervisor` starts, watches and
ends processes; `embedded_redis` is a Redis for
one user; `stack` is the hub with one agent per cluster; `manifests`, `services`
and `fleet` add what the demo needs: clusters with a Prometheus each, and the sample scorers.
"""
