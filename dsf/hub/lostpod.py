"""Removes the pod of a Redis without a volume when its node is lost, so that another node runs it.

A StatefulSet replaces a pod only after the old one has ended, which the kubelet of a lost node never confirms. A Redis
with a volume must wait for an administrator, because two servers on one volume would damage it. A Redis without a
volume has nothing to damage, and the hub fills the new server again.
"""

from __future__ import annotations

import datetime
import threading
from typing import Final

import dsf.log
from dsf.errors import BackendError, ObjectNotFoundError, SettingsError
from dsf.kube.resources import PODS
from dsf.kube.session import Session
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

#: Seconds between two checks of the pod.
CHECK_SECONDS: Final = 2.0
#: Time after the pod's grace period in which the kubelet of a working node confirms the end of the pod.
MARGIN: Final = datetime.timedelta(seconds=2)


class LostPodRemover:
    """Checks one pod periodically in a thread. Only the elected controller runs it."""

    def __init__(self, session: Session, pod: str) -> None:
        """`pod` is NAMESPACE/NAME. Raises SettingsError."""
        namespace, _, name = pod.partition("/")
        if not namespace or not name or "/" in name:
            raise SettingsError(f"DSF_REDIS_MOVABLE_POD: {pod!r} is not NAMESPACE/POD, such as hub/redis-0")
        self._session = session
        self._path = PODS.path(namespace, name)
        self._pod = pod
        self._stopping = threading.Event()
        self._thread = SupervisedThread(self._run, "lost-pod")

    def start(self) -> None:
        """Start checking the pod."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the checks and end their thread."""
        self._stopping.set()
        self._thread.join(5)
        self._session.close()

    def _run(self) -> None:
        while not self._stopping.wait(CHECK_SECONDS):
            try:
                self.check()
            except BackendError as error:
                log.warning("the pod of redis cannot be checked", pod=self._pod, error=str(error))

    def check(self) -> bool:
        """Remove the pod if it should have ended; return True if it was removed. Raises BackendError."""
        try:
            metadata = self._session.get(self._path)["metadata"]
        except ObjectNotFoundError:
            return False
        # The API server sets the deletion timestamp to the end of the grace period.
        ends_at = metadata.get("deletionTimestamp")
        if ends_at is None or self._session.read_clock() < datetime.datetime.fromisoformat(ends_at) + MARGIN:
            return False
        try:
            self._session.delete(self._path, uid=metadata["uid"], is_immediate=True)
        except ObjectNotFoundError:
            return False
        log.warning("removed the pod of redis, whose node does not answer: another node can run it", pod=self._pod)
        return True
