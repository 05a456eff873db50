"""The exporter: the whole fleet's metrics and a read-only JSON API, both read from Redis on request.

In reading order: `families` turns pairs into metric families, `collector` reads Redis at a scrape, `app` is the HTTP
service over `dsf.fleet`, with one reading for concurrent scrapes. It writes nothing, so any number of exporters may
run.
"""
