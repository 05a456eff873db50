"""`make docs` builds the site strictly from the Markdown, and the site loads nothing from other hosts."""

from __future__ import annotations

import html.parser
import importlib.machinery
import importlib.util
import json
import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
#: Kinds of pages, which the navigation keeps apart.
KINDS = ["Tutorials", "How-to guides", "Reference", "Explanation"]
#: Tags that make a browser load a file, and the attributes with its address.
_LOADED = {
    **dict.fromkeys(("script", "img", "iframe", "source", "video", "audio", "embed", "track", "input"), ("src",)),
    "link": ("href",),
    "object": ("data",),
    "use": ("href", "xlink:href"),
    "image": ("href", "xlink:href"),
}
#: Links that a browser does not follow by itself.
_NOT_LOADED = {"canonical", "next", "prev", "edit", "author", "license"}


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


def _is_foreign(address: str) -> bool:
    return re.match(r"(https?:)?//", address.strip(), re.IGNORECASE) is not None


def test_no_page_loads_anything_from_another_host(built: Path) -> None:
    pages = sorted((built / "site" / VERSION).rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        reader = _Loads()
        text = page.read_text(encoding="utf-8")
        reader.feed(text)
        assert reader.addresses, page
        assert [address for address in reader.addresses if _is_foreign(address)] == [], page
        # Styles inside the page.
        assert not re.search(
            r"@import|url\(['\"]?(https?:)?//", "".join(re.findall(r"<style.*?</style>", text, re.DOTALL))
        )
    for style in (built / "site" / VERSION).rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_foreign_addresses_are_detected() -> None:
    reader = _Loads()
    reader.feed('<script src="//a/b"></script><link rel=stylesheet href="https://c/d"><a href="https://e">e</a>')
    assert [address for address in reader.addresses if _is_foreign(address)] == ["//a/b", "https://c/d"]


def test_every_page_of_docs_is_built_and_searchable(built: Path) -> None:
    site = built / "site" / "latest"
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    indexed_pages = {entry["location"].partition("#")[0] for entry in index["items"]}
    for page in (ROOT / "docs").rglob("*.md"):
        name = str(page.relative_to(ROOT).with_suffix(".html"))
        name = name.replace("README.html", "index.html")
        assert (site / name).is_file(), name
        assert name in indexed_pages, f"the search does not know {name}"
    texts = " ".join(entry["text"] for entry in index["items"])
    assert "too_many_results" in texts
    assert "DSF_REDIS_URL" in texts


def test_navigation_has_four_sections_with_every_page() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    sections = {title: entries for entry in nav for title, entries in entry.items() if isinstance(entries, list)}
    assert list(sections)[: len(KINDS)] == KINDS
    pages = [target for entries in [nav, *sections.values()] for entry in entries for target in entry.values()]
    linked_pages = [target for target in pages if isinstance(target, str) and target.startswith("docs/")]
    assert sorted(linked_pages) == sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")), "each once"
    reference = [target for entry in sections["Reference"] for target in entry.values()]
    for name in ("settings", "helm-values", "cli", "crds", "metrics", "reasons", "http-api"):
        assert f"docs/{name}.md" in reference


def test_broken_links_fail_the_build(built: Path, script: ModuleType) -> None:
    page = built / "pages" / "docs" / "tuning.md"
    before = page.read_text(encoding="utf-8")
    page.write_text(f"{before}\n[nowhere](nowhere.md)\n[nowhere](upgrade.md#no-such-heading)\n", encoding="utf-8")
    try:
        problems = script.build(built, built / "zensical.yml")
    finally:
        page.write_text(before, encoding="utf-8")
    for name in ("nowhere.md", "no-such-heading"):
        assert name in problems


def test_pages_outside_of_the_navigation_fail_the_build(script: ModuleType, tmp_path: Path) -> None:
    pages = {ROOT / name: "" for name in ("README.md", "docs/install.md")}
    with pytest.raises(SystemExit, match=r"docs/web\.md"):
        script.configuration(pages, tmp_path)


def test_each_version_is_kept_and_latest_is_the_highest(script: ModuleType, tmp_path: Path) -> None:
    built, site = tmp_path / "built", tmp_path / "site"
    built.mkdir()
    site.mkdir()
    for version in ("0.9.0", "0.10.0", "0.9.1"):
        (built / "index.html").write_text(version, encoding="utf-8")
        script.publish(built, site, version)
    versions = json.loads((site / "versions.json").read_text(encoding="utf-8"))
    assert [(entry["version"], entry["aliases"]) for entry in versions] == [
        ("0.10.0", ["latest"]),
        ("0.9.1", []),
        ("0.9.0", []),
    ]
    pages = {name: (site / name / "index.html").read_text(encoding="utf-8") for name in ("latest", "0.9.0", "0.9.1")}
    assert pages == {"latest": "0.10.0", "0.9.0": "0.9.0", "0.9.1": "0.9.1"}
    assert 'url=latest/"' in (site / "index.html").read_text(encoding="utf-8")


def test_sitemap_has_the_address_of_each_page(built: Path) -> None:
    site = built / "site" / "latest"
    addresses = {
        location.text
        for location in ET.parse(site / "sitemap.xml").iter("{http://www.sitemaps.org/schemas/sitemap/0.9}loc")
    }
    base = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["site_url"]
    assert {f"{base}docs/install.html", f"{base}docs/network.html"} <= addresses
    pages = {
        f"{base}{page.relative_to(site)}"
        for page in site.rglob("*.html")
        if page.name not in {"404.html", "index.html"}
    }
    assert pages <= addresses


def test_edit_links_lead_to_files_of_the_repository(built: Path) -> None:
    site = built / "site" / "latest"
    edited = set()
    for page in site.rglob("*.html"):
        for name in re.findall(r'href="[^"]*/edit/main/([^"]+)"', page.read_text(encoding="utf-8")):
            assert (ROOT / name).is_file(), f"{page.relative_to(site)}: {name}"
            edited.add(name)
    assert {"README.md", "docs/install.md", "docs/network.md", "CONTRIBUTING.md"} <= edited


def test_folders_that_pages_link_to_are_in_the_site(built: Path) -> None:
    assert (built / "site" / "latest" / ".github" / "workflows" / "release.yaml").is_file()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Import scripts/docs, which has no ending."""
    loader = importlib.machinery.SourceFileLoader("docs_script", str(ROOT / "scripts" / "docs"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
