"""The source type `Object`: fields of Kubernetes objects of the managed cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field, StrictInt
from pydantic.config import JsonDict

from dsf.api.fieldtypes import DISTINCT_NAMES, NOT_EMPTY
from dsf.api.meta import Rule, SpecModel
from dsf.api.selector import ClusterSelector

#: Kinds that contain secrets and are never read, regardless of permissions: API group -> (kind -> plural).
DENIED: Final[Mapping[str, Mapping[str, str]]] = {
    "": {"Secret": "secrets"},
    "work.open-cluster-management.io": {
        "ManifestWork": "manifestworks",
        "ManifestWorkReplicaSet": "manifestworkreplicasets",
    },
    "oauth.openshift.io": {
        "OAuthAccessToken": "oauthaccesstokens",
        "OAuthAuthorizeToken": "oauthauthorizetokens",
        "OAuthClient": "oauthclients",
        "UserOAuthAccessToken": "useroauthaccesstokens",
    },
}
DENIED_RULE: Final = (
    "objects of this kind hold secrets and are never read: Secret, ManifestWork, ManifestWorkReplicaSet, and "
    "OpenShift's OAuth tokens and clients"
)
#: Labels that each series has.
_OWN_LABELS: Final = ("__name__", "namespace", "name")
_KEY = r"[A-Za-z0-9_-]+"
_PATH_PATTERN: Final = rf"^\.?{_KEY}(\.{_KEY}|\[[0-9]{{1,4}}\]|\['[^'\\]+'\])*$"
_SELECTOR_PATTERN = re.compile(r"[A-Za-z0-9_./-]*")


def _make_denied_rule() -> str:
    """Return the CEL rule by which the API server rejects the `DENIED` kinds."""
    groups = (
        f"self.kind in {list(kinds)} && "
        + (f"self.apiVersion.startsWith('{group}/')" if group else "!self.apiVersion.contains('/')")
        for group, kinds in DENIED.items()
    )
    return f"!({' || '.join(f'({group})' for group in groups)})"


_BY_NAME: Final[JsonDict] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
Path = Annotated[str, Field(pattern=_PATH_PATTERN, max_length=512)]


class ObjectLabel(SpecModel):
    """A label of the series, read from the object."""

    rules = (
        Rule(
            f"each series has {', '.join(_OWN_LABELS)} already; choose another name",
            f"!(self.name in {list(_OWN_LABELS)})",
            lambda self: self.name not in _OWN_LABELS,
        ),
    )

    name: str = Field(description="Name of the label.", pattern="^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=63)
    path: Path = Field(description="Path of its value; a missing label is omitted.")


class ObjectField(SpecModel):
    """A field of each object: one series for each object."""

    name: str = Field(description="Name of the series.", pattern="^[a-zA-Z_:][a-zA-Z0-9_:]*$", max_length=200)
    path: Path = Field(
        description="Path of the value, such as status.readyReplicas, spec.containers[0].resources.limits.cpu or "
        "status.allocatable['nvidia.com/gpu']: a number, a quantity, or true or false, which are 1 and 0."
    )
    labels: Annotated[tuple[ObjectLabel, ...], DISTINCT_NAMES] = Field(
        default=(),
        description="Labels of the series beside namespace and name.",
        max_length=8,
        json_schema_extra=_BY_NAME,
    )
    default: StrictInt | None = Field(
        default=None, description="The value for objects without the field; unset: they have no series."
    )


class ObjectSource(SpecModel):
    """The objects to read, and their fields."""

    rules = (
        Rule(DENIED_RULE, _make_denied_rule(), lambda self: self.kind not in DENIED.get(self.group, {})),
        Rule(
            "a selector's keys and values have letters, digits, - _ . and / only",
            holds=lambda self: (
                self.selector is None or all(map(_SELECTOR_PATTERN.fullmatch, _list_texts(self.selector)))
            ),
        ),
    )

    api_version: str = Field(
        description="API group and version, such as apps/v1; v1 for the core group.",
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[0-9][a-z0-9]*$",
        max_length=317,
    )
    kind: str = Field(description="The kind, such as Deployment.", pattern="^[A-Z][A-Za-z0-9]*$", max_length=63)
    namespace: str = Field(
        default="",
        description="Only objects of this namespace; unset: of all.",
        pattern="^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$",
        max_length=63,
    )
    selector: ClusterSelector | None = Field(default=None, description="Only objects with these labels; unset: all.")
    fields: Annotated[tuple[ObjectField, ...], NOT_EMPTY, DISTINCT_NAMES] = Field(
        description="The fields to read of each object.",
        max_length=16,
        json_schema_extra=_BY_NAME | {"minItems": 1},
    )

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]


def _list_texts(selector: ClusterSelector) -> list[str]:
    labels = selector.match_labels or {}
    texts = [*labels, *labels.values()]
    for expression in selector.match_expressions:
        texts += [expression.key, *expression.values]
    return texts
