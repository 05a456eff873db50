"""Redis access control: users, their rules and their passwords.

`rules` alone defines what each process may do; `users` makes the text of an ACL file; `clusterusers` reconciles
the users of managed clusters; `keyids` tells which of a cluster's credentials are valid during a rotation.
`python -m dsf.redisacl` writes an ACL file.
"""
