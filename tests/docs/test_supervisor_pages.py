"""The pages about a supervisor's documents and orders, and about kiqctl, name all that there is."""

from __future__ import annotations

import re

from kiqcluster.control.control_messages import CANCEL
from kiqcluster.control.orders import ACTIONS
from kiqcluster.ctl.command import command
from kiqcluster.sidekiq.queue_groups import SelectorGroup
from kiqcluster.supervisor.cluster.child import Child, LastBeat
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.http import endpoints
from kiqcluster.supervisor.http.status import status_document
from kiqcluster.supervisor.publisher import Publisher
from tests.docs.test_docs import section
from tests.kit import ROOT, ManualClock

STATUS = "docs/reference/status.md"


def names_in(cell: str) -> set[str]:
    return set(re.findall(r"`/?(\w+)`", cell))


def named(page: str, heading: str) -> list[set[str]]:
    """Return the names in the first column of each table of a section."""
    tables = re.split(r"^\|---", section(page, heading), flags=re.MULTILINE)[1:]
    return [set().union(*map(names_in, re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))) for table in tables]


def cluster() -> ClusterState:
    """Return one with a slot that has all optional fields."""
    group = SelectorGroup("tags=a", (), shard="eu")
    slot = Slot(SlotPlan(0, group, {"default": 1}, "random", 1))
    slot.child = Child(100, None, 0.0, LastBeat(0.0, redis=False), ready_at=1.0)  # type: ignore[arg-type]  # it has no socket
    return ClusterState(slots=[slot])


def test_every_field_of_status_is_in_the_tables() -> None:
    document = status_document(cluster(), "here:1:abc", None, 45.0)

    assert named(STATUS, "## Fields of /status") == [document.keys() | {"shards_away"}, document["slots"][0].keys()]


def test_every_field_of_the_document_in_redis_is_in_the_table() -> None:
    document = Publisher("here:1:abc", cluster(), None, ManualClock(1_000.0)).document()  # type: ignore[arg-type]  # nobody is told
    (children,) = re.findall(r"^\| `children` \|(.*)", section(STATUS, "## The document in Redis"), re.MULTILINE)

    assert named(STATUS, "## The document in Redis") == [document.keys()]
    assert names_in(children) == document["children"][0].keys()  # type: ignore[index]


def test_every_order_of_the_control_socket_is_in_the_table() -> None:
    text = (ROOT / "docs/reference/control_socket.md").read_text()

    rows = re.findall(r"^\| `POST /(\w+)` \| (\d+) \|", text, re.MULTILINE)
    assert {action: int(code) for action, code in rows} == endpoints.ORDERS


def test_every_order_of_a_message_is_in_the_table() -> None:
    text = (ROOT / "docs/reference/control_messages.md").read_text()

    (cell,) = re.findall(r"^\| `action` \|(.*)", text, re.MULTILINE)
    assert names_in(cell) == {*ACTIONS, CANCEL}


def test_every_command_of_kiqctl_has_a_page() -> None:
    commands = set(command.commands) - {"completion"}

    assert named("docs/reference/kiqctl/index.md", "# kiqctl")[0] == commands
