"""Authentication of requests to sources and scoring APIs.

    secrets        interface of the store of Secrets, CAs and ServiceAccount tokens, and its errors
    authenticator  from an agent's configuration to the credentials of a request
    builder        builder of the credentials
    tokencache     cache of tokens from token servers: renewed before they expire, shared by all pairs
    methods        the methods, a function each; those of clouds are in `packages/dsf-sources`
    oauth2         the one that asks a server

A new method is a model in `dsf/api/authentication.py`, a function here, and its line in `authenticator.METHODS`.
"""
