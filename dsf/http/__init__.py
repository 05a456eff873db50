"""HTTP with bounds: one request, one answer, a deadline for the whole exchange and a limit on the decoded bytes.

    client     get() and post()
    failures   what went wrong, as an HttpError that a person can act on
    transport  connections that know the deadline of the exchange they serve
    deadline   ends an exchange when its time is over, wherever it is blocked
    trust      private CAs besides the public ones

Built on requests, but below its Session: that follows redirects (with the whole body of the redirect in memory), keeps
cookies and reads proxies, .netrc and certificates from the environment. None of that must happen to a request that
carries a token. Nothing is tried again here: who retries must know the deadline of the cycle.
"""

from dsf.http.client import Stream, get, post
from dsf.http.failures import Explain

__all__ = ["Explain", "Stream", "get", "post"]
