"""Names of score items, from `spec.scoreDimensionFormat` and the labels of a result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from dsf.api.types import USED_LABELS

#: Default format.
DEFAULT_FORMAT: Final = "${scoreName}"

#: Placeholder names.
PLACEHOLDERS: Final = ("cluster", "scoreName", *USED_LABELS)

_PLACEHOLDER = re.compile(r"\$\{(" + "|".join(PLACEHOLDERS) + r")\}")
_LOOKS_LIKE_ONE = re.compile(r"\$\{[^${}]*\}|\$[A-Za-z_]\w*")


def unknown_placeholders(fmt: str) -> list[str]:
    """Unknown placeholders of a format, in order; they are kept literally."""
    return [placeholder for placeholder in _LOOKS_LIKE_ONE.findall(fmt) if not _PLACEHOLDER.fullmatch(placeholder)]


class DimensionFormat:
    """A dimension format prepared for one cluster and score: built once, rendered for every result.

    It is expanded in one pass: values that look like placeholders are not expanded. Unknown placeholders are literal,
    absent labels are empty. An empty format means the default.

    A name of which only separators are left (`;;`) because no label of the format is there is no name.
    """

    __slots__ = ("_labels", "_separators", "_template")

    def __init__(self, fmt: str, cluster: str, score_name: str) -> None:
        known = {"cluster": cluster, "scoreName": score_name}
        template = ""
        labels: list[str] = []
        # The split alternates: text, placeholder, text, ..., text.
        for index, part in enumerate(_parts(fmt or DEFAULT_FORMAT)):
            if index % 2 and part not in known:
                labels.append(part)
                template += "%s"
            else:
                text = known[part] if index % 2 else part
                template += text.replace("%", "%%")
        self._template = template
        self._labels = labels
        bare = template % (("",) * len(labels)) if labels else ""
        #: The name of a result without any of the labels, if it has neither letter nor digit.
        self._separators = "" if any(map(str.isalnum, bare)) else bare

    def render(self, labels: Mapping[str, str]) -> str:
        """The item name of a result with these labels; may be empty."""
        name = self._template % tuple([labels.get(label, "") for label in self._labels])
        return "" if name == self._separators else name


@lru_cache(256)
def _parts(fmt: str) -> tuple[str, ...]:
    return tuple(_PLACEHOLDER.split(fmt))


def render_dimension(fmt: str, cluster: str, score_name: str, labels: Mapping[str, str]) -> str:
    """The item name of one result; see `DimensionFormat`."""
    return DimensionFormat(fmt, cluster, score_name).render(labels)
