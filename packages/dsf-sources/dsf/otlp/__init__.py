"""The source type `OpenTelemetry`: metrics of a collector or SDK, from which the agent keeps the series that its
scorers select.

    scrape    the source plug-in that fetches a collector's page of metrics
    selector  parses the queries of fetched and pushed metrics, and of the source `Kubernetes`

For metrics that are pushed by OTLP/HTTP:

    plugin          the source plug-in, an entry point of the distribution
    receiver        the HTTP server
    protobufbounds  limits of a request in protobuf, before it is parsed
    received        selection of points, and reasons for rejection
    points          OTLP metrics converted to Prometheus samples

The modules for pushed metrics need the extra `otel`. An agent imports the package with the first such scorer.
"""
