"""Safe description of a token server's answer, which may contain a token that is not masked yet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from dsf.text import cleaned, masked

_MEDIA_TYPE: Final = re.compile(r"[a-z]+/[a-z0-9.+-]{1,60}")
#: The fields of an error: RFC 6749, 5.2; then those of clouds, for some within `error`. AWS sends XML.
_FIELDS: Final = ("error", "error_description", "code", "message")
_XML_FIELDS: Final = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>")


def shown(status: int, content_type: str, body: bytes, secrets: Iterable[str] = ()) -> str:
    """The fields of an error without the secrets that were sent, or else kind and length of the answer."""
    error = _error(body.decode(errors="replace")) if status >= 400 else ""
    if error:
        return cleaned(masked(error, *secrets), 500)
    kind = content_type.partition(";")[0].strip().lower()
    kind = kind if _MEDIA_TYPE.fullmatch(kind) else "of no known type"
    return f"an answer ({kind}, {len(body)} bytes) that is not shown, as it may hold a token"


def _error(text: str) -> str:
    try:
        document = _lowered(json.loads(text))
    except (ValueError, RecursionError):
        fields = _XML_FIELDS.search(text)
        return "" if fields is None else ": ".join(fields.groups())
    document = _lowered(document.get("error")) or document
    return ": ".join(str(document[name]) for name in _FIELDS if isinstance(document.get(name), str | int))


def _lowered(document: Any) -> dict[str, Any]:
    return {name.lower(): value for name, value in document.items()} if isinstance(document, dict) else {}
