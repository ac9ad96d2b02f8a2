"""The pages about guarantees of job classes, by what they are about."""

from __future__ import annotations

import re

from tests.kit import ROOT

PAGES = {
    "Attributes, selectors and targets": "docs/guides/attributes.md",
    "Routing": "docs/guides/route.md",
    "Shards": "docs/guides/shard.md",
    "Rate limits": "docs/guides/limit_rates.md",
    "Size limiter": "docs/guides/large_arguments.md",
    "Versions": "docs/guides/versions.md",
    "Expiry": "docs/guides/expire.md",
    "Encryption": "docs/guides/encrypt_arguments.md",
    "Timeouts": "docs/guides/timeouts.md",
    "Interruptions": "docs/guides/interruptions.md",
    "RetryError": "docs/guides/retry_error.md",
    "Concurrency limits": "docs/guides/limit_concurrency.md",
    "Limited capacity": "docs/guides/limited_capacity.md",
    "Strikes": "docs/guides/strikes.md",
    "Policies": "docs/guides/policies.md",
    "Deduplication": "docs/guides/deduplicate.md",
    "Context": "docs/guides/context.md",
    "What else GitLab documents": "docs/reference/gitlab.md",
}


def sections() -> dict[str, str]:
    """Return guarantee → text of its page."""
    return {title: (ROOT / page).read_text() for title, page in PAGES.items()}


def shown(title: str, language: str) -> str:
    """Return what a page shows in a language."""
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", sections()[title], re.MULTILINE | re.DOTALL))
