"""Links lead somewhere, and manifests and JSON of the pages are valid."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from dsf.api.manifest import ParsedDocument, parse_documents
from tests.integration.docs import pages
from tests.integration.docs.pages import PAGES, ROOT, Block
from tests.support import ocmschemas

OURS = "dynamic-scoring.open-cluster-management.io/"
#: Kinds of other projects without a schema here; each page in docs/ lists untested parts.
FOREIGN = {"Connector", "Kustomization", "Listener", "Site"}
#: Pages for contributors, without commands of users.
OTHERS = ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
LANGUAGES = {"console", "sh", "yaml", "json", "python", "dockerfile", "promql", "toml", "nginx", ""}


def _blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in pages.blocks(page) if block.language in languages]


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_code_blocks_declare_a_known_language(page: Path) -> None:
    assert {block.language for block in pages.blocks(page)} <= LANGUAGES
    # An unclosed fence would make a block of the following text.
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(pages.blocks(page))


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / name for name in OTHERS)], ids=pages.name)
def test_links_have_targets(page: Path) -> None:
    for target in pages.links(page):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{pages.name(page)}: {target}"
        assert file.is_relative_to(ROOT), target
        if anchor:
            assert anchor in pages.anchors(file), f"{pages.name(page)}: {target}"


def test_pages_are_linked_from_the_index() -> None:
    linked_pages = {(ROOT / "docs" / link.partition("#")[0]).name for link in pages.links(ROOT / "docs" / "README.md")}
    assert {page.name for page in PAGES} - {"README.md"} <= linked_pages
    assert "docs/README.md" in pages.links(ROOT / "README.md")


@pytest.mark.parametrize("block", _blocks("json"), ids=str)
def test_json_blocks_are_valid(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", _blocks("yaml"), ids=str)
def test_manifests_are_valid(block: Block) -> None:
    documents = [document for document in yaml.safe_load_all(block.text) if document is not None]
    assert documents
    for document in documents:
        if isinstance(document, dict) and {"apiVersion", "kind"} <= set(document):
            _check(document, block)


def _check(document: dict[str, Any], block: Block) -> None:
    version, kind = document["apiVersion"], document["kind"]
    if version.startswith(OURS):
        (parsed,) = parse_documents(yaml.safe_dump(document), str(block))
        assert isinstance(parsed, ParsedDocument), parsed
    elif (schema := _schemas().get((version, kind))) is not None:
        jsonschema.Draft202012Validator(schema).validate(document)
    elif kind not in FOREIGN:
        kubernetes_validate.validate(document, "1.36", strict=True)


@functools.cache
def _schemas() -> ocmschemas.Schemas:
    return ocmschemas.read_schemas()
