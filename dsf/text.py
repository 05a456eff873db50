"""Cleans text of sources, scoring APIs and agents before it is stored or shown.

The cleaned text goes to logs, terminals, Kubernetes objects, metric labels and pages. `mask_secrets` removes the
secrets of a cycle, even escaped or in base64. `clean` removes all non-printable characters: C0 and C1 control
characters, bidirectional controls, lone surrogates. Mask text before you truncate it, and clean it afterwards.
`list_names` names the first of many names. `describe_request` describes a request and `shorten_url` a URL. All messages
quote URLs by these two functions, because user information and query of a URL may contain secrets.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import unquote

#: Replacement for a secret.
MASK: Final = "***"
#: Replacement for a whole text, if the secret in it is encoded in a form that cannot be located exactly.
WITHHELD: Final = "(not shown: it repeats a token)"
#: Minimum length of a secret's head that is masked at the end of a truncated text. Shorter heads may be other text.
_MIN_HEAD_LENGTH: Final = 8
#: Translates the URL-safe alphabet of base64 to the standard alphabet.
_STANDARD_BASE64: Final = str.maketrans("-_", "+/")
#: The sign that ends the user information of a URL, also escaped or as a character that Unicode normalises to it.
_AT_SIGN_PATTERN: Final = re.compile("@|%40|[\uff20\ufe6b]", re.IGNORECASE)
#: Host and port that directly precede the path. A template may stand for a part of the host.
_SERVER_PATTERN: Final = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|(?:\$\{[^}]*\}|[\w.-])+)(?::[0-9]+)?(?=[/?#]|$)")
_SCHEME_PATTERN: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*")
#: A URL in a text, if it has no `@`: a word with `://`, between blanks or quotation marks.
_URL_IN_TEXT_PATTERN: Final = re.compile(r"(?<![^\s'\"])[^\s'\"]*://[^\s'\"]*")
_WORD_START_PATTERN: Final = re.compile(r"['\"(]?")
_WORD_END_PATTERN: Final = re.compile(r"[\s'\"]|$")
_ESCAPE_PATTERN: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|([\"'\\/]))")


def clean(text: str, limit: int) -> str:
    """Return the text on one line without non-printable characters, truncated to `limit` characters."""
    if len(text) <= limit and text.isprintable() and " " not in text:
        return text
    return " ".join(replace_unprintable(text[: 4 * limit]).split())[:limit]


def escape_unprintable(text: str, *, allowed_characters: str = "") -> str:
    """Return the text with non-printable characters escaped, except those in `allowed_characters`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in allowed_characters else ascii(char)[1:-1] for char in text)


def replace_unprintable(text: str) -> str:
    """Return the text with a blank in place of each non-printable character, for label values."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def list_names(names: Sequence[str], max_names: int) -> str:
    """Return the first `max_names` names, and how many more there are."""
    omitted_count = len(names) - max_names
    return ", ".join(names[:max_names]) + (f" and {omitted_count} more" if omitted_count > 0 else "")


def describe_request(method: str, url: str) -> str:
    """Return `GET http://host:port/path` for messages, without the user information and the query of the URL."""
    return f"{method} {shorten_url(url)}"


def shorten_url(url: str) -> str:
    """Return the URL for messages: without user information, query and fragment, truncated to 500 characters.

    All text before the last `@` is masked, because a password may contain any character.
    """
    scheme, mark, address = _split_scheme(url)
    if ends := [sign.end() for sign in _AT_SIGN_PATTERN.finditer(address)]:
        address = f"{MASK}@{address[ends[-1] :]}"
    return clean(f"{scheme}{mark}{re.split('[?#]', address, maxsplit=1)[0]}", 500)


def has_user(url: str) -> bool:
    """True if a URL, valid or not, has a user name or a password: an `@` that does not follow the host."""
    address = _split_scheme(url)[2]
    return _AT_SIGN_PATTERN.search(address) is not None and _SERVER_PATTERN.match(address) is None


def _split_scheme(url: str) -> tuple[str, str, str]:
    """Return the scheme, `://` and the rest of a URL. The first two are empty without a valid scheme."""
    scheme, mark, address = url.partition("://")
    # Check the scheme, because in a URL without one the text before `://` may be the start of a password.
    return (scheme, mark, address) if mark and _SCHEME_PATTERN.fullmatch(scheme) else ("", "", url)


def shorten_urls(text: str) -> str:
    """Return the text with each URL in the form of `shorten_url`.

    In a line with an `@` after `://`, the URL extends beyond the last `@`, because user names and passwords may contain
    any character.
    """
    return "\n".join(map(_remove_secrets_of_line, text.split("\n"))) if "://" in text else text


def _remove_secrets_of_line(line: str) -> str:
    mark, at_sign = line.find("://"), line.rfind("@")
    if not 0 <= mark < at_sign:
        return _URL_IN_TEXT_PATTERN.sub(lambda match: shorten_url(match[0]), line)
    # Only a blank starts the word, because a user name or password before the mark may contain quotation marks.
    blank = max(line.rfind(character, 0, mark) for character in " \t")
    start = _WORD_START_PATTERN.match(line, blank + 1)
    end = _WORD_END_PATTERN.search(line, at_sign)
    assert start is not None and end is not None  # noqa: PT018 - both patterns match everywhere
    line_end = _URL_IN_TEXT_PATTERN.sub(lambda match: shorten_url(match[0]), line[end.start() :])
    return f"{line[: start.end()]}{shorten_url(line[start.end() : end.start()])}{line_end}"


def mask_secrets(text: str, *secrets: str | None) -> str:
    """Return the text without the secrets, even if they are escaped (JSON, URL, HTML) or in base64.

    Secrets that are None or empty are ignored.
    """
    for secret in filter(None, secrets):
        text = text.replace(secret, MASK)
        for length in range(len(secret) - 1, _MIN_HEAD_LENGTH - 1, -1):
            if text.endswith(secret[:length]):
                text = text[:-length] + MASK
                break
        unescaped_text = _remove_blanks(_unescape(text))
        base64_text = unescaped_text.translate(_STANDARD_BASE64)
        if _remove_blanks(secret) in unescaped_text or any(form in base64_text for form in _yield_base64_forms(secret)):
            return WITHHELD
    return text


def _yield_base64_forms(secret: str) -> Iterator[str]:
    """Yield the characters that the base64 form of every text with the secret contains, for each of three offsets.

    Forms are omitted if they are too short to be distinguished from other text.
    """
    data = secret.encode(errors="surrogatepass")
    for offset in range(3):
        text = base64.b64encode(bytes(offset) + data).decode()
        # Omit the characters at both ends that depend on the neighbouring bytes.
        form = text[-(-offset * 8 // 6) : (offset + len(data)) * 8 // 6]
        if len(form) >= _MIN_HEAD_LENGTH:
            yield form


def _unescape(text: str) -> str:
    unescaped_json = _ESCAPE_PATTERN.sub(lambda match: match[3] or chr(int(match[1] or match[2], 16)), text)
    # Import html late, because read-only commands do not need its table of five thousand entities.
    import html

    return html.unescape(unquote(unescaped_json))


def _remove_blanks(text: str) -> str:
    """Return the text without blanks and without the characters that `clean` replaces by blanks."""
    return "".join(char for char in text if char.isprintable() and not char.isspace())
