"""Authentication by the account of a cloud: Amazon, Azure, Google.

    cloud  exchanges the agent's ServiceAccount token for a cloud's token
    aws    Amazon's signatures
    azure  tokens of Microsoft Entra
    gcp    tokens of Google

Each method is an `add(method, builder)`, and needs the extra of its name. `dsf.auth.authenticator` loads a method with
the first scorer that uses it.
"""
