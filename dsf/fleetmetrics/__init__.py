"""The metrics of the whole fleet, read from Redis on request.

families   turns pairs into metric families
server     turns INFO of Redis into metric families
collector  reads Redis at a scrape
endpoint   the route of the web service, with one reading for concurrent scrapes
"""
