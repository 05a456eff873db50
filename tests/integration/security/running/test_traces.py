"""No secret is in anything that the fleet wrote, stored, sent or showed in the tests of this folder."""

from __future__ import annotations

from dsf.messages import derive_key
from tests.integration.security.fleet import CANARIES, CLUSTERS, MASTER, SCORER, Fleet
from tests.integration.security.traces import contents, files, pages, secrets_in, served, traffic
from tests.support.httpserver import answer


def test_secrets_appear_nowhere(fleet: Fleet) -> None:
    """A source that refuses the token is one more occasion to show it."""
    text_by_surface = dict(traffic(fleet, "good cycles", "dsf.cycle", "dsf.fetch", "dsf.score", "dsf.publish"))
    fleet.source.script(answer({"error": "no such token"}, 401))
    try:
        fleet.until(lambda: fleet.state("c1").failing > 0, "a failed cycle")
        text_by_surface |= dict(traffic(fleet, "failed cycles", "dsf.fetch"))
        text_by_surface |= dict(contents(fleet)) | dict(files(fleet)) | dict(served(fleet)) | dict(pages(fleet))
        text_by_surface |= {f"refused {number}": text for number, text in enumerate(fleet.refused)}
        # The newest cycle may have had no time then.
        refusal_reason = "unauthorized"
        fleet.until(lambda: refusal_reason in fleet.get(fleet.web_port, "/api/v1/scorers"), "the refusal to be shown")
    finally:
        fleet.give_series()
    secrets = dict(CANARIES)
    for cluster in CLUSTERS:
        for key_id in range(1, fleet.key_id(cluster) + 2):
            secrets[f"password {key_id} of {cluster}"] = fleet.users.derive_password(cluster, key_id)
            secrets[f"signing key {key_id} of {cluster}"] = derive_key(MASTER, cluster, key_id).secret.hex()
    assert len(text_by_surface) > 30
    assert [(surface, name) for surface, text in text_by_surface.items() for name in secrets_in(text, secrets)] == []
    # The search itself works.
    for expected_text in (SCORER, refusal_reason):
        assert any(expected_text in text for text in text_by_surface.values())
