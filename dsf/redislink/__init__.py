"""Connection of every process to Redis: address, credentials, TLS, Sentinel.

address     parses the URL
connection  connections with one-line errors
link        makes clients for a server or Sentinels, with the current user and password
broker      the same for Celery
"""
