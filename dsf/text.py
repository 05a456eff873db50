"""Cleans text of sources, scoring APIs and agents before it is stored or shown.

The cleaned text goes to logs, terminals, Kubernetes objects, metric labels and pages. `masked` removes the secrets of a
cycle, even escaped or in base64, and `cleaned` all non-printable characters: C0 and C1 control characters,
bidirectional controls, lone surrogates. Mask text before cutting it and clean it after. `listed` names the first of
many, `place` a request, `shown_url` a URL: no message quotes a URL in another way, as its user information and its
query may hold secrets.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import unquote

#: Replacement for a secret.
MASK: Final = "***"
#: Replacement for a text with a secret in a form that cannot be cut out.
WITHHELD: Final = "(not shown: it repeats a token)"
#: A cut text may end within a secret; at least this many characters of its head are masked.
_SHORTEST_HEAD: Final = 8
#: From base64's URL-safe alphabet to the standard one.
_TO_STANDARD: Final = str.maketrans("-_", "+/")
#: Ends of a user information, also escaped or in the forms that Unicode normalises to it.
_AT: Final = re.compile("@|%40|[\uff20\ufe6b]", re.IGNORECASE)
#: Host and port, and nothing else before the path. A template may stand for a part of the host.
_SERVER: Final = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|(?:\$\{[^}]*\}|[\w.-])+)(?::[0-9]+)?(?=[/?#]|$)")
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*")
#: A URL without an `@` in a text: a word with `://`, between blanks or quotation marks.
_URL_IN_TEXT: Final = re.compile(r"(?<![^\s'\"])[^\s'\"]*://[^\s'\"]*")
_WORD_START: Final = re.compile(r"['\"(]?")
_WORD_END: Final = re.compile(r"[\s'\"]|$")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|([\"'\\/]))")


def cleaned(text: str, limit: int) -> str:
    """Return the text on one line without non-printable characters, at most `limit` characters."""
    if len(text) <= limit and text.isprintable() and " " not in text:
        return text
    return " ".join(spaced(text[: 4 * limit]).split())[:limit]


def visible(text: str, *, allowed_characters: str = "") -> str:
    """Return the text with non-printable characters escaped, except those in `allowed_characters`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in allowed_characters else ascii(char)[1:-1] for char in text)


def spaced(text: str) -> str:
    """Return the text with a blank in place of each non-printable character. For label values."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def listed(names: Sequence[str], max_names: int) -> str:
    """Return the first `max_names` names, and how many more there are."""
    omitted_count = len(names) - max_names
    return ", ".join(names[:max_names]) + (f" and {omitted_count} more" if omitted_count > 0 else "")


def place(method: str, url: str) -> str:
    """`GET http://host:port/path` for messages: without user information and query."""
    return f"{method} {shown_url(url)}"


def shown_url(url: str) -> str:
    """Return the URL for messages: without user information, query and fragment, at most 500 characters.

    In a text with an `@` nothing before the last one is shown, as a password may have any character.
    """
    scheme, mark, rest = _parts(url)
    if ends := [sign.end() for sign in _AT.finditer(rest)]:
        rest = f"{MASK}@{rest[ends[-1] :]}"
    return cleaned(f"{scheme}{mark}{re.split('[?#]', rest, maxsplit=1)[0]}", 500)


def has_user(url: str) -> bool:
    """Whether a URL, valid or not, has a user name or a password: an `@` that is not behind its host."""
    rest = _parts(url)[2]
    return _AT.search(rest) is not None and _SERVER.match(rest) is None


def _parts(url: str) -> tuple[str, str, str]:
    """Return the scheme and its mark, both empty without a valid scheme, and the rest."""
    scheme, mark, rest = url.partition("://")
    # Without this check, a password with `://` in a URL without a scheme would be shown up to there.
    return (scheme, mark, rest) if mark and _SCHEME.fullmatch(scheme) else ("", "", url)


def without_secrets_of_urls(text: str) -> str:
    """Return the text with each URL in it as `shown_url` shows it.

    In a line with an `@` after `://`, the URL ends after the last `@`: user names and passwords may have any character.
    """
    return "\n".join(map(_line_without_secrets, text.split("\n"))) if "://" in text else text


def _line_without_secrets(line: str) -> str:
    mark, at_sign = line.find("://"), line.rfind("@")
    if not 0 <= mark < at_sign:
        return _URL_IN_TEXT.sub(lambda match: shown_url(match[0]), line)
    # The word begins at a blank, as a user name or password before the mark may have quotation marks.
    blank = max(line.rfind(character, 0, mark) for character in " \t")
    start = _WORD_START.match(line, blank + 1)
    end = _WORD_END.search(line, at_sign)
    assert start is not None and end is not None  # noqa: PT018 - both patterns match everywhere
    rest = _URL_IN_TEXT.sub(lambda match: shown_url(match[0]), line[end.start() :])
    return f"{line[: start.end()]}{shown_url(line[start.end() : end.start()])}{rest}"


def masked(text: str, *secrets: str | None) -> str:
    """Return the text without the secrets, even escaped (JSON, URL, HTML) or in base64. None is ignored."""
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
    """The common part of base64 of any text with the secret: one form for each offset within three bytes.

    No form of a secret that is too short to be distinguished from other text.
    """
    data = secret.encode(errors="surrogatepass")
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).decode()
        # Omit characters that depend on neighbouring bits.
        form = text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        if len(form) >= _SHORTEST_HEAD:
            yield form


def _unescaped(text: str) -> str:
    once = _ESCAPE.sub(lambda match: match[3] or chr(int(match[1] or match[2], 16)), text)
    # Imported here, for its table of five thousand entities, which read-only commands do not need.
    import html

    return html.unescape(unquote(once))


def _bare(text: str) -> str:
    """Return the text without blanks and the characters that `cleaned` replaces by blanks."""
    return "".join(char for char in text if char.isprintable() and not char.isspace())
