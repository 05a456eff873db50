"""Lists objects of the agent's own cluster in pages, for scorers with the source type `Object`."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from dsf.api.objectsource import DENIED, DENIED_RULE, ObjectSource
from dsf.api.selector import ClusterSelector
from dsf.api.types import AGENT_ACCOUNT
from dsf.errors import BackendError, HttpError, ObjectNotFoundError
from dsf.kube.resources import Resource
from dsf.kube.session import ApiServerError, ExpiredError, Session, TooLargeError

#: Objects per page. The number is small, because parsed objects are many times larger than their text.
_PAGE_SIZE: Final = 100
#: Maximum bytes of the resource list of an API group version.
_MAX_KINDS: Final = 4 * 1024 * 1024


class KubeListing:
    """A list of the objects of one kind on the API server."""

    def __init__(
        self, session: Session, allowed_resources: Collection[str], object_source: ObjectSource, deadline: float
    ) -> None:
        """Find the resource of the kind, which must be in `allowed_resources`. Raises HttpError."""
        self._session = session
        self._resource = _find_resource(session, object_source, deadline)
        if str(self._resource) not in allowed_resources:
            # RBAC alone is not enough: an agent may have the right to read pods only to sum up their requests.
            raise HttpError(
                "unauthorized", f"this agent may not read {self._resource}: {_describe_grant(self._resource)}"
            )
        self._path = self._resource.path(object_source.namespace)
        selector = format_selector(object_source.selector) if object_source.selector is not None else ""
        self._query = {"limit": str(_PAGE_SIZE)} | ({"labelSelector": selector} if selector else {})
        #: The request, as `dsf explain` shows it.
        self.url = f"{self._path}?{urlencode(self._query)} of this cluster"

    def iterate_pages(self, max_bytes: int, deadline: float) -> Iterator[tuple[Sequence[Mapping[str, Any]], int]]:
        """Yield (objects, bytes) of each page.

        Raises HttpError: `unauthorized` without the right, `too_large` if all pages have more than `max_bytes`,
        `timeout` after `deadline` (time.monotonic()), `connection_failed`, `unknown_kind` and `http_error`.
        """
        continue_token = ""
        while True:
            query = self._query | ({"continue": continue_token} if continue_token else {})
            page, size = _read(self._session, self._path, query, max_bytes, deadline, self._resource)
            max_bytes -= size
            items, metadata = page.get("items") or [], page.get("metadata") or {}
            if not isinstance(metadata, dict) or not isinstance(items, list) or not all(map(_is_object, items)):
                raise HttpError("bad_answer", f"the list of {self._resource} is no list of objects")
            yield items, size
            continue_token = str(metadata.get("continue") or "")
            if not continue_token:
                return


def format_selector(selector: ClusterSelector) -> str:
    """Return the selector in the format of the API server's query."""
    formats = {"Exists": "{}", "DoesNotExist": "!{}", "In": "{} in ({})", "NotIn": "{} notin ({})"}
    label_terms = [f"{key}={value}" for key, value in (selector.match_labels or {}).items()]
    expression_terms = [
        formats[expression.operator].format(expression.key, ",".join(expression.values))
        for expression in selector.match_expressions
    ]
    return ",".join(label_terms + expression_terms)


def _is_object(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("metadata", {}), dict | None)


def _find_resource(session: Session, object_source: ObjectSource, deadline: float) -> Resource:
    """Return the resource of the kind, which has the name in API paths. Raises HttpError."""
    prefix = f"/apis/{object_source.api_version}" if object_source.group else f"/api/{object_source.api_version}"
    resource_list, _ = _read(session, prefix, {}, _MAX_KINDS, deadline, object_source.api_version)
    version = object_source.api_version.rpartition("/")[2]
    for kind in _iterate_kinds(resource_list, object_source):
        if kind["name"] in DENIED.get(object_source.group, {}).values():
            raise HttpError("bad_query", f"{object_source.kind}: {DENIED_RULE}")
        if object_source.namespace and not kind["namespaced"]:
            raise HttpError(
                "bad_query", f"a {object_source.kind} is in no namespace; leave out source.object.namespace"
            )
        return Resource(object_source.group, version, kind["name"], object_source.kind, kind["namespaced"])
    raise HttpError(
        "unknown_kind",
        f"this cluster has no kind {object_source.kind} in {object_source.api_version} that can be listed",
    )


def _iterate_kinds(resource_list: Mapping[str, Any], object_source: ObjectSource) -> Iterator[Mapping[str, Any]]:
    """Yield name and scope of the resources of the requested kind that can be listed."""
    try:
        for entry in resource_list.get("resources") or ():
            if entry["kind"] == object_source.kind and "/" not in entry["name"] and "list" in entry["verbs"]:
                yield {"name": entry["name"], "namespaced": entry["namespaced"]}
    except (LookupError, TypeError, AttributeError):
        raise HttpError("bad_answer", f"the list of kinds in {object_source.api_version} cannot be read") from None


def _read(
    session: Session, path: str, query: Mapping[str, str], max_bytes: int, deadline: float, target: Resource | str
) -> tuple[dict[str, Any], int]:
    """Return (response, number of bytes). Raises HttpError with a message that names the remedy."""
    try:
        return session.read(path, query, max_bytes=max_bytes, deadline=deadline)
    except ObjectNotFoundError as error:
        raise HttpError("unknown_kind", f"this cluster has no {target}: {error}", status=404) from None
    except TooLargeError as error:
        raise HttpError("too_large", f"{error}; select fewer objects by namespace or selector") from None
    except ExpiredError as error:
        raise HttpError("connection_failed", str(error), status=error.status, retryable=True) from None
    except ApiServerError as error:
        if error.status in (401, 403):
            raise HttpError("unauthorized", f"{_describe_grant(target)}: {error}", status=error.status) from None
        reason = "bad_query" if error.status == 400 else "http_error"
        raise HttpError(
            reason,
            str(error),
            status=error.status,
            retryable=not error.is_refusal,
            retry_after=error.retry_after if error.is_busy else None,
        ) from None
    except BackendError as error:
        reason = "timeout" if time.monotonic() >= deadline else "connection_failed"
        raise HttpError(reason, str(error), retryable=True) from None


def _describe_grant(target: Resource | str) -> str:
    """Return which right is missing and how to grant it. `target` is a resource, or an API group version."""
    if isinstance(target, str):
        return f"the source Object needs the right to see which kinds {target} has (ClusterRole system:discovery)"
    return (
        f"the source Object needs the right to list {target}; on the hub add {{apiGroup: {target.group or repr('')}, "
        "resource: "
        f"{target.plural}}} to the chart's spokeSetting.agent.sources.objects; of an agent installed by hand, "
        f"name {target} in DSF_AGENT_OBJECTS and bind a ClusterRole with list of it to ServiceAccount {AGENT_ACCOUNT}"
    )
