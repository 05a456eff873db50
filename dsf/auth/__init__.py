"""Authentication of requests to sources and scoring APIs.

secrets        interface of the store of Secrets, CAs and ServiceAccount tokens, and its errors
authenticator  turns an agent's configuration into the credentials of a request
builder        collects the credentials of one server
methods        the methods, a function each; those of clouds are in `packages/dsf-sources`
oauth2         the method that gets a token from a token server
tokencache     caches tokens: renewed before they expire, shared by all pairs

A new method is a model in `dsf/api/authentication.py`, a function here, and its line in `authenticator.METHODS`.
"""
