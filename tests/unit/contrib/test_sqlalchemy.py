"""contrib.sqlalchemy: what it needs."""

from __future__ import annotations

import subprocess
import sys

from tests.kit import ROOT

WITHOUT_GREENLET = """
import sys
sys.modules["greenlet"] = None  # as if it were not installed
import sqlalchemy, sqlalchemy.orm
from kiqcluster.contrib.sqlalchemy import manage_sessions, once
session = manage_sessions(sqlalchemy.orm.sessionmaker(sqlalchemy.create_engine("sqlite://")))
"""


def test_it_needs_no_greenlet() -> None:
    """SQLAlchemy 2.1 has it in an extra of its own, for async sessions."""
    subprocess.run([sys.executable, "-c", WITHOUT_GREENLET], cwd=ROOT, check=True)
