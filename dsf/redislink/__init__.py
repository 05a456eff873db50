"""Connection of every process to Redis: address, credentials, TLS, Sentinel.

`address` parses the URL, `credentials` reads the current user and password, `connection` makes connections with
one-line errors, `sentinel` queries the Sentinels, `link` combines them for redis-py, `transport` and `broker`
for Celery.
"""
