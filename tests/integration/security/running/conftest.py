"""All tests of this folder share one fleet, and leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.security.fleet import Fleet


@pytest.fixture(scope="package")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Everything, running."""
    with Fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture
def fleet(started: Fleet) -> Fleet:
    """The shared fleet; denials of an earlier test are moved to `refused`, for the search for secrets."""
    started.refused.append(str(started.admin.execute_command("ACL LOG", 500)))
    started.admin.acl_log_reset()
    return started
