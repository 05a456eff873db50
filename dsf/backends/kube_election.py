"""Which of several hub controllers works."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from typing import Final

from dsf.kube.leader import LeaderElector, Times
from dsf.kube.session import Session
from dsf.settings import Settings

LEASE_NAME: Final = "dynamic-scoring-hub"
#: Looks at the lease somewhat oftener than other controllers do: a standby that waits 2 s for its look, after the
#: second in which the other hub ended its work, would take longer than 3 s in all.
TIMES: Final = Times(retry=1.5)


class KubeElection(LeaderElector):
    """One hub's candidacy for the Lease in the hub's namespace, with connections of its own."""

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
        # A host name may come again, when a pod is restarted in place; a process does not.
        identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        calls = {"on_started": on_started, "on_lost": on_lost}
        # The first cell's is that of a hub without cells, which it was or will be: both at once would fight.
        lease = LEASE_NAME if settings.division.is_first else f"{LEASE_NAME}-{settings.cell}"
        super().__init__(session, settings.namespace, lease, identity, **calls, times=times)

    def stop(self) -> None:
        """Hand the lease over. Call it after all work has stopped."""
        self.release()
        self._session.close()
