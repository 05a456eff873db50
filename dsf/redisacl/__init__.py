"""Redis access control: users, their rules and their passwords.

rules         what each process may do, as ACL rules
users         the text of an ACL file
clusterusers  reconciles the users of managed clusters
misuse        switches off a cluster's credential that fills or blocks Redis
keyids        valid credentials of a cluster during a rotation

`python -m dsf.redisacl` writes an ACL file.
"""
