"""Authentication of requests to sources and scoring APIs: one file per method, loaded at first use.

    secrets        where Secrets, CAs and tokens of the own account come from, and what can be wrong with them
    authenticator  from what an agent was told to what goes along with a request
    draft          what the methods write into
    tokencache     tokens that are got from a server: kept until shortly before their end, got once for all

    bearer basic certificate headers parameters oauth2 serviceaccount aws
                   the methods; each has `add(method, draft)`

A new method is a model in `dsf/api/authentication.py`, a file here, and its line in `authenticator.METHODS`.
"""
