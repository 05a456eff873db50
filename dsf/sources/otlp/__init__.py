"""OTLP/HTTP for metrics: an OpenTelemetry collector or SDK pushes, the agent keeps what its scorers ask for.

    received   which points are kept, and why others are not
    points     OTLP's kinds of metrics as samples of Prometheus' kind
    receiver   the HTTP server

Needs the extra `otel`; nothing here is imported unless DSF_OTLP_PORT is set.
"""
