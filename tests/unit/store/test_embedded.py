"""The private server's folder and address."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.connection import parse_url

from kiqcluster.store import embedded


@pytest.mark.parametrize("folder", ["/tmp/kiq", "/tmp/a folder", "/tmp/50%25?x=#é"])
def test_its_url_leads_other_clients_to_the_same_socket(folder: str) -> None:
    url = embedded.url_of(Path(folder))

    assert parse_url(url)["path"] == str(embedded.socket_path(Path(folder)))  # type: ignore[no-untyped-call]
