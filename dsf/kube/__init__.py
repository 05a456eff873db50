"""A small Kubernetes client for controllers, on top of the official client.

`resources` names the kinds, `session` makes requests (over the official client's transport and configuration),
`reflector` keeps a local copy of one kind, `leader` elects one active process. Everything works on plain dicts.
"""
