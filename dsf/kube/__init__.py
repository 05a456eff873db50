"""A small Kubernetes client for controllers, on top of the official client. All objects are plain dicts.

resources  kinds of objects with their REST paths
access     reads the API server's address and credentials
session    sends requests, with the official client's transport and configuration
lists      reads lists in pages, and retries requests to an overloaded API server
reflector  keeps a local copy of one kind up to date by a watch
store      the cache of a reflector
leader     elects the active process
reviews    authenticates and authorizes users of services
"""
