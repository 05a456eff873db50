"""`make docs` builds the site strictly from the Markdown, and the site loads nothing from other hosts."""

from __future__ import annotations

import html.parser
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.child import ran

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "docs"
#: Kinds of pages, which the navigation keeps apart.
KINDS = ["Tutorials", "How-to guides", "Reference", "Explanation"]
#: Tags that make a browser load what they name, and the attributes with its address.
_LOADED = {
    **dict.fromkeys(("script", "img", "iframe", "source", "video", "audio", "embed", "track", "input"), ("src",)),
    "link": ("href",),
    "object": ("data",),
    "use": ("href", "xlink:href"),
    "image": ("href", "xlink:href"),
}
#: Links that a browser does not follow by itself.
_NOT_LOADED = {"canonical", "next", "prev", "edit", "author", "license"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the site and its sources."""
    folder = tmp_path_factory.mktemp("site")
    process = _build(folder)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    return folder


def _build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, folder]
    return ran(command, cwd=ROOT)


class _Loads(html.parser.HTMLParser):
    """Collects the addresses that a page makes its browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "link" and (attributes.get("rel") or "") in _NOT_LOADED:
            return
        self.addresses += [value for name in _LOADED.get(tag, ()) if (value := attributes.get(name))]
        self.addresses += [
            candidate.split()[0] for candidate in (attributes.get("srcset") or "").split(",") if candidate.strip()
        ]
        self.addresses += re.findall(r"url\(['\"]?([^)'\"]+)", attributes.get("style") or "")


def _foreign(address: str) -> bool:
    return re.match(r"(https?:)?//", address.strip(), re.IGNORECASE) is not None


def test_no_page_loads_anything_from_another_host(built: Path) -> None:
    pages = sorted((built / "site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        reader = _Loads()
        text = page.read_text(encoding="utf-8")
        reader.feed(text)
        assert reader.addresses, page
        assert [address for address in reader.addresses if _foreign(address)] == [], page
        # Styles inside the page.
        assert not re.search(
            r"@import|url\(['\"]?(https?:)?//", "".join(re.findall(r"<style.*?</style>", text, re.DOTALL))
        )
    for style in (built / "site").rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_foreign_addresses_are_detected() -> None:
    reader = _Loads()
    reader.feed('<script src="//a/b"></script><link rel=stylesheet href="https://c/d"><a href="https://e">e</a>')
    assert [address for address in reader.addresses if _foreign(address)] == ["//a/b", "https://c/d"]


def test_every_page_of_docs_is_built_and_searchable(built: Path) -> None:
    index = json.loads((built / "site" / "search" / "search_index.json").read_text(encoding="utf-8"))
    indexed_pages = {entry["location"].partition("#")[0] for entry in index["docs"]}
    for page in (ROOT / "docs").rglob("*.md"):
        name = str(page.relative_to(ROOT).with_suffix(".html"))
        name = name.replace("README.html", "index.html")
        assert (built / "site" / name).is_file(), name
        assert name in indexed_pages, f"the search does not know {name}"
    texts = " ".join(entry["text"] for entry in index["docs"])
    assert "too_many_results" in texts
    assert "DSF_REDIS_URL" in texts


def test_navigation_has_four_sections_with_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    sections = re.findall(r"^  - ([\w -]+):\n((?:      - .*\n)+)", nav, re.MULTILINE)
    names = [name for name, _ in sections]
    assert names[: len(KINDS)] == KINDS
    linked_pages = re.findall(r": (docs/\S+\.md)$", nav, re.MULTILINE)
    assert sorted(linked_pages) == sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")), "each once"
    reference = dict(sections)["Reference"]
    for name in ("settings", "helm-values", "cli", "crds", "metrics", "reasons", "http-api"):
        assert f"docs/{name}.md" in reference


def test_broken_links_fail_the_build(built: Path) -> None:
    pages = built / "pages" / "docs"
    page = pages / "tuning.md"
    before = page.read_text(encoding="utf-8")
    page.write_text(f"{before}\n[nowhere](nowhere.md)\n[nowhere](upgrade.md#no-such-heading)\n", encoding="utf-8")
    (pages / "stray.md").write_text("# A page that the navigation does not have\n", encoding="utf-8")
    try:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", built / "other"]
        process = ran([*command, "--config-file", built / "mkdocs.yml"])
    finally:
        (pages / "stray.md").unlink()
        page.write_text(before, encoding="utf-8")
    assert process.returncode == 1
    for name in ("nowhere.md", "no-such-heading", "stray.md"):
        assert name in process.stderr
    assert "Aborted with 3 warnings in strict mode" in process.stdout + process.stderr
