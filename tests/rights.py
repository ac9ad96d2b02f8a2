"""The users of docs/guides/secure_redis.md, as somebody copies them from there."""

from __future__ import annotations

import re

from tests.kit import ROOT

GUIDE = ROOT / "docs/guides/secure_redis.md"


def user_of_guide(name: str) -> list[str]:
    """Return the command that makes a user, whose password is `pw`."""
    (rule,) = re.findall(rf"^ACL SETUSER {name} [^`]*(?=\n```$)", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    words: list[str] = rule.replace(">PASSWORD", ">pw").replace("\\\n", " ").split()
    return words
