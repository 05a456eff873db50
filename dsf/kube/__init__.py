"""A small Kubernetes client: what a controller needs and the official client does not give in a usable form.

`resources` names the kinds, `session` makes requests (over the official client's transport and configuration),
`reflector` keeps a local copy of one kind, `leader` elects one active process. Everything works on plain dicts.
"""
