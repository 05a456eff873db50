"""OTLP/HTTP for metrics: an OpenTelemetry collector or SDK pushes, the agent keeps the series that its scorers select.

    plugin     the source plug-in, an entry point of the distribution
    received   selection of points, and reasons for rejection
    points     OTLP metrics converted to Prometheus samples
    receiver   the HTTP server

Needs the extra `otel`; nothing here is imported before an agent has a scorer whose metrics are pushed.
"""
