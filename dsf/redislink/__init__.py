"""Connection of every process to Redis: address, credentials, TLS, Sentinel.

`address` reads the URL, `credentials` the user and password of this moment, `connection` makes connections that say in
one line what is wrong, `sentinel` asks the Sentinels, `link` puts them together for redis-py, `transport` and `broker`
for Celery.
"""
