"""Redis access control: users, their rules and their passwords.

`rules` is the one place that says what each process may do; `users` makes the text of an ACL file; `clusterusers` keeps
the users of managed clusters as they should be; `keyids` says which of a cluster's credentials are valid during a
rotation. `python -m dsf.redisacl` writes an ACL file.
"""
