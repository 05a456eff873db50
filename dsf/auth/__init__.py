"""Authentication of requests to sources and scoring APIs.

secrets        interface of the stores of Secrets, CAs and ServiceAccount tokens, with its errors
authenticator  turns a server's configuration into the credentials of a request
builder        collects the credentials for one server
methods        one function per method; those of cloud methods are in `packages/dsf-sources`
oauth2         the OAuth2 method, which requests tokens from a token server
tokencache     caches tokens for all pairs and renews them before they expire

A new method requires a model in `dsf/api/authentication.py`, a function here, and an entry in `authenticator.METHODS`.
"""
