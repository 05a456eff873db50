"""A small Kubernetes client for controllers, on top of the official client. All objects are plain dicts.

resources  kinds of objects with their REST paths
access     address and credentials of the API server
session    requests, over the official client's transport and configuration
lists      requests for callers without a work queue, and lists in pages
reflector  a local copy of one kind, kept up to date by a watch
store      the cache that a reflector fills
leader     elects one active process
reviews    authenticates and authorizes users of services
"""
