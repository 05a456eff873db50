"""Connections to Redis: address, credentials, TLS, Sentinel.

address     parses the URL
connection  connection classes with readable errors
link        creates clients for a server or Sentinels, with the current user name and password
broker      Celery's connections to its broker
"""
