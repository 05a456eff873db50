"""Leader election among hub controllers."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from typing import Final

from dsf.kube.leader import LeaderElector, Times
from dsf.kube.session import Session
from dsf.settings import Settings

LEASE_NAME: Final = "dynamic-scoring-hub"
#: Shorter than other controllers' retry period: with 2 s, plus one second in which the old leader ends its work, a
#: takeover would take more than 3 s.
TIMES: Final = Times(retry=1.5)


class KubeElection(LeaderElector):
    """One hub's candidacy for the Lease in the hub's namespace, with its own connections."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        *,
        on_started: Callable[[], None],
        on_lost: Callable[[], None],
        times: Times = TIMES,
    ) -> None:
        """See LeaderElector for the callbacks. The session is closed by `stop`."""
        # A restarted container keeps its host name; this id is unique to the process.
        identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        calls = {"on_started": on_started, "on_lost": on_lost}
        super().__init__(session, settings.namespace, LEASE_NAME, identity, **calls, times=times)

    def stop(self) -> None:
        """Release the Lease. Call it after all work has stopped."""
        self.release()
        self._session.close()
