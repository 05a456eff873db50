"""Connection of every process to Redis: address, credentials, TLS, Sentinel.

`address` parses the URL, `connection` makes connections with one-line errors, `link` combines them for redis-py and
Sentinels, with the current user and password, `broker` for Celery.
"""
