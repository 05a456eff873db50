"""Parameters of requests, and authentication of callers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from dsf.errors import ManifestError, SettingsError
from dsf.kube.session import Session
from dsf.optimizer.access import KubernetesAccess, OpenAccess, TokenAccess, make_access
from dsf.optimizer.model import Preference
from dsf.optimizer.params import OptimizeParams

BODY: dict[str, Any] = {
    "namespace": "default",
    "clusters": [{"name": "c1", "availablePolicies": [{"name": "p"}]}],
    "targetWorkloads": [{"name": "w"}],
    "preference": {"addOnPlacementScore": "s"},
}


def test_both_spellings_of_the_score() -> None:
    for name in ("addOnPlacementScore", "addonPlacementScore"):
        params = OptimizeParams.model_validate(BODY | {"preference": {name: "s"}})
        assert params.make_preferences() == (Preference("s"),)
    assert OptimizeParams.model_validate(BODY).model_dump(by_alias=True)["preference"]["addOnPlacementScore"] == "s"


@pytest.mark.parametrize(
    "wrong",
    [
        {"dryrun": True},
        {"dryRun": "yes"},
        {"keepCurrent": -1},
        {"timeLimit": 0},
        {"gap": 2},
        {"preference": None},
        {"preferences": [{"addOnPlacementScore": "t"}]},
        {"clusters": [{"name": "a/b", "availablePolicies": []}]},
        {"targetWorkloads": [{"name": "Upper"}]},
        {"targetWorkloads": [{"name": "x" * 254}]},
        {"namespace": ""},
        {"preference": {"addOnPlacementScore": "s", "weight": -1}},
        {"preference": {"addOnPlacementScore": "s", "weight": 0}},
        {
            "preference": None,
            "preferences": [{"addOnPlacementScore": "s", "weight": -1}, {"addOnPlacementScore": "t", "weight": -2}],
        },
    ],
)
def test_invalid_params_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OptimizeParams.model_validate(BODY | wrong)


def test_preference_without_gain_is_refused_with_advice() -> None:
    with pytest.raises(ValidationError, match="mix it with a score to prefer, or let the scorer rate low use high"):
        OptimizeParams.model_validate(BODY | {"preference": {"addOnPlacementScore": "s", "weight": -1}})
    mixed = [{"addOnPlacementScore": "s"}, {"addOnPlacementScore": "t", "weight": -1}]
    params = OptimizeParams.model_validate(BODY | {"preference": None, "preferences": mixed})
    assert params.make_preferences() == (Preference("s"), Preference("t", -1))


def test_preference_accepts_the_name_used_by_the_scorer() -> None:
    params = OptimizeParams.model_validate(BODY | {"preference": {"addOnPlacementScore": "My_score"}})
    assert params.make_preferences() == (Preference("my-score", score_name="My_score"),)


def test_every_wrong_preference_is_named() -> None:
    body = BODY | {
        "preference": None,
        "preferences": [
            {"addOnPlacementScore": "a", "weight": 0},
            {"addOnPlacementScore": "b", "scoreDimensionFormat": "${pod}"},
        ],
    }
    with pytest.raises(ManifestError, match=r"weight 0\.0 of score a is zero.*; dimension format '\$\{pod\}'"):
        OptimizeParams.model_validate(body).make_preferences()


def test_access_mode_follows_settings(tmp_path: Path) -> None:
    session = cast("Session", None)
    file = tmp_path / "token"
    file.write_text("t" * 16)
    assert isinstance(make_access("kubernetes", "0.0.0.0", None, session, "ns"), KubernetesAccess)
    assert isinstance(make_access("token", "0.0.0.0", file, session, "ns"), TokenAccess)
    assert isinstance(make_access("none", "localhost", None, session, "ns"), OpenAccess)
    with pytest.raises(SettingsError, match="could move workloads"):
        make_access("none", "0.0.0.0", None, session, "ns")
    with pytest.raises(SettingsError, match="DSF_CLIENT_TOKEN_FILE"):
        make_access("token", "localhost", None, session, "ns")
    file.write_text("\n")
    with pytest.raises(SettingsError, match="a token of 0 characters"):
        make_access("token", "localhost", file, session, "ns")


def test_empty_plan_id_is_refused() -> None:
    """An unset variable gives an empty id, which would apply any plan."""
    assert OptimizeParams.model_validate(BODY).plan_id is None
    with pytest.raises(ValidationError, match="at least 1 character"):
        OptimizeParams.model_validate(BODY | {"planId": ""})
