from __future__ import annotations

from dsf.optimizer.requestbody import brief


def test_of_very_many_mistakes_the_first_are_named() -> None:
    details = [{"loc": ("items", number), "msg": "is wrong"} for number in range(600)]
    text = brief(details)
    assert text.startswith("items[0]: is wrong; items[1]: is wrong")
    assert text.endswith("items[49]: is wrong; and 550 more mistakes")
    assert "more mistakes" not in brief(details[:50])
