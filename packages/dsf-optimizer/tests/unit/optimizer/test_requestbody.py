from __future__ import annotations

from dsf.optimizer.requestbody import format_errors


def test_brief_names_the_first_of_many_problems() -> None:
    details = [{"loc": ("items", number), "msg": "is wrong"} for number in range(600)]
    text = format_errors(details)
    assert text.startswith("items[0]: is wrong; items[1]: is wrong")
    assert text.endswith("items[49]: is wrong; and 550 more mistakes")
    assert "more mistakes" not in format_errors(details[:50])
