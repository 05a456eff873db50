"""Authentication by the account of a cloud: Amazon, Azure, Google.

    aws azure gcp   one method each, as `add(method, builder)`; each needs the extra of its name
    cloud           exchange of the agent's ServiceAccount token for one of a cloud

`dsf.auth.authenticator` loads a method with the first scorer that uses it.
"""
