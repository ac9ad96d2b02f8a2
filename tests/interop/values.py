"""Arguments that have gone wrong somewhere on their way between languages, by kind."""

from __future__ import annotations

from typing import Any

__all__ = ["ALL_KINDS", "ARGUMENTS"]

ARGUMENTS: dict[str, list[Any]] = {
    "text": [
        "",
        "plain",
        "é 漢字 🚀 👩‍👩‍👧",
        "combining e\u0301, composed é",
        "lines\u2028and\u2029paragraphs",
        "\ufeffmark \ufffd private \ue000 last \U0010ffff",
        '"quoted" \\ back / slash </script> & <tag>',
        "controls \x00\x01\b\t\n\f\r\x1f\x7f\x80",
    ],
    "ordinary floats": [0.0, 0.5, 1.5, -2.25, 3.0, 1000.0, 0.1, 1 / 3, 0.0001, 1795168740.1958468, 999999999999999.9],
    "extreme floats": [-0.0, 1e15, 1e16, 1.5e20, 1e-5, -2.5e-10, 5e-324, 2.2250738585072014e-308, 1e100,
                       1.7976931348623157e308, 1234567890123456.7, 9007199254740993.0],
    "integers": [0, -1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 2**70, -(10**40)],
    "nested": [
        {"a": {"b": [{"c": [1, 2.5, None, {"deep": ["d", {"e": {}}]}]}]}, "ключ 🔑": "value", "": "empty key"},
        [[[[[["six"]]]]]],
        {"z": 1, "a": 2, "10": 3, "9": 4},
    ],
    "nothing": [None, True, False, [], {}, "", [[]], [None], {"none": None, "list": [], "hash": {}}],
}  # fmt: skip
ALL_KINDS: list[Any] = [*ARGUMENTS.values(), ARGUMENTS]
