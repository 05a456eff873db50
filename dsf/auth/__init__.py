"""Authentication of requests to sources and scoring APIs.

secrets        interface of the store of Secrets, CAs and ServiceAccount tokens, with its errors
authenticator  turns an agent's configuration into the credentials of a request
builder        collects the credentials of one server
methods        a function per method; the functions of cloud methods are in `packages/dsf-sources`
oauth2         the method that requests a token from a token server
tokencache     cache of tokens, which all pairs share, with renewal before tokens expire

A new method requires a model in `dsf/api/authentication.py`, a function here, and an entry in `authenticator.METHODS`.
"""
