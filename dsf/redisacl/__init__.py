"""Redis access control: users, their rules and their passwords.

rules         the ACL rules of each process
users         formats users as an ACL file
clusterusers  reconciles the users of managed clusters
misuse        disables a cluster's credentials that are used to fill or block Redis
keyids        the valid credentials of a cluster, including rotations

`python -m dsf.redisacl` writes an ACL file.
"""
