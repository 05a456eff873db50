"""The exporter: the whole fleet's metrics and a read-only JSON API, both read from Redis on request.

In reading order: `families` turns pairs into metric families, `collector` reads Redis at a scrape, `scrape` shares one
reading between concurrent scrapes, `app` is the HTTP service over `dsf.fleet`, `main` runs it. It writes
nothing, so any number of exporters may run.
"""
