"""Text from outside, before anything keeps or shows it: what sources, scoring APIs and agents said.

It goes to logs, terminals, Kubernetes objects, metric labels and pages. `masked` takes the secrets of a cycle out of
it, also where they are escaped or in base64, and `cleaned` everything that is not a printable character: control
characters of both sets, those that turn the direction of writing, halves of characters. Mask before text is cut and
clean after.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

#: In place of a secret.
MASK: Final = "***"
#: In place of a text that spells a secret in a way in which it cannot be cut out.
WITHHELD: Final = "(not shown: it repeats a token)"
#: A text that was cut may end within a secret; so many characters of one are masked.
_SHORTEST_HEAD: Final = 8
#: The URL-safe alphabet of base64 as the other one.
_TO_STANDARD: Final = str.maketrans("-_", "+/")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|([\"'\\/]))")


def cleaned(text: str, limit: int) -> str:
    """The text on one line, without characters that cannot be seen, at most `limit` characters of it."""
    if len(text) <= limit and text.isprintable() and " " not in text:
        return text
    return " ".join(spaced(text[: 4 * limit]).split())[:limit]


def visible(text: str, *, kept: str = "") -> str:
    """The text with an escape in place of each character that cannot be seen, but for those of `kept`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in kept else ascii(char)[1:-1] for char in text)


def spaced(text: str) -> str:
    """The text with a blank in place of each character that cannot be seen. For values of labels."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def masked(text: str, *secrets: str | None) -> str:
    """The text without the secrets, also those in escapes of JSON, URLs and HTML, or in base64. None is no secret."""
    for secret in filter(None, secrets):
        text = text.replace(secret, MASK)
        for length in range(len(secret) - 1, _SHORTEST_HEAD - 1, -1):
            if text.endswith(secret[:length]):
                text = text[:-length] + MASK
                break
        bare = _bare(_unescaped(text))
        plain = bare.translate(_TO_STANDARD)
        if _bare(secret) in bare or any(form in plain for form in _base64_forms(secret)):
            return WITHHELD
    return text


def _base64_forms(secret: str) -> Iterator[str]:
    """What base64 of any text with the secret in it has in common: one form for each place within three bytes.

    None of a secret that is too short to be told from other text in this way.
    """
    data = secret.encode(errors="surrogatepass")
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).decode()
        # What hangs on the neighbours' bits is left out.
        form = text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        if len(form) >= _SHORTEST_HEAD:
            yield form


def _unescaped(text: str) -> str:
    once = _ESCAPE.sub(lambda found: found[3] or chr(int(found[1] or found[2], 16)), text)
    # Here, for its table of five thousand entities: a command that looks needs none of them.
    import html

    return html.unescape(unquote(once))


def _bare(text: str) -> str:
    """Without blanks, and without what `cleaned` takes for one."""
    return "".join(char for char in text if char.isprintable() and not char.isspace())
