"""Results of `dsf scorer test` as JUnit's XML, which CI systems show."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree as Xml  # written, never read

from dsf.conformance.testrun import CaseResult
from dsf.text import escape_unprintable


def write(path: Path, cases: list[CaseResult]) -> None:
    """Write one suite per file. Raises OSError."""
    suites = Xml.Element("testsuites", _count_totals(cases))
    for file, group in groupby(cases, key=lambda case: case.file):
        file_cases = list(group)
        suite = Xml.SubElement(suites, "testsuite", {"name": _replace_unprintable(file)} | _count_totals(file_cases))
        for case in file_cases:
            attributes = {
                "classname": _replace_unprintable(file),
                "name": _replace_unprintable(case.name),
                "time": f"{case.seconds:.3f}",
            }
            test = Xml.SubElement(
                suite, "testcase", attributes | {"file": _replace_unprintable(file), "line": str(case.line)}
            )
            if case.failures:
                failure = Xml.SubElement(test, "failure", message=_replace_unprintable(case.failures[0]))
                failure.text = _replace_unprintable("\n".join(case.failures))
    Xml.indent(suites)
    Xml.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def _count_totals(cases: list[CaseResult]) -> dict[str, str]:
    return {
        "tests": str(len(cases)),
        "failures": str(sum(bool(case.failures) for case in cases)),
        "errors": "0",
        "time": f"{sum(case.seconds for case in cases):.3f}",
    }


def _replace_unprintable(text: str) -> str:
    # XML has no control characters, and UTF-8 no lone surrogates.
    return escape_unprintable(text, allowed_characters="\n\t").encode("utf-8", "replace").decode()
