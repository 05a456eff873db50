"""The metrics of the whole fleet, read from Redis on request.

In reading order: `families` turns pairs into metric families, `collector` reads Redis at a scrape, `endpoint` is the
route of the web service, with one reading for concurrent scrapes.
"""
