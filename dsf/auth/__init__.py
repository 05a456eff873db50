"""Authentication of requests to sources and scoring APIs: one file per method, loaded at first use.

    secrets        interface of the store of Secrets, CAs and ServiceAccount tokens, and its errors
    authenticator  from an agent's configuration to the credentials of a request
    builder        builder of the credentials
    tokencache     cache of tokens from token servers: renewed before they expire, shared by all pairs

    bearer basic certificate headers parameters oauth2 serviceaccount
                   the methods; each has `add(method, builder)`. Those of clouds are in `packages/dsf-sources`

A new method is a model in `dsf/api/authentication.py`, a file here, and its line in `authenticator.METHODS`.
"""
