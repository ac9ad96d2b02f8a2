"""Where each job lies in a Redis, all at one moment: read by a script that knows nothing of the product's own."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store

__all__ = ["ENDS", "Place", "jobs_in", "twice"]

SCRIPT = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local values = {}
  if string.find(key, '^queue:') or string.find(key, '^kiq:wake:') or string.find(key, '^kiq:hand:') then
    values = redis.call('LRANGE', key, 0, -1)
  elseif string.find(key, '^kiq:inflight:') then
    values = redis.call('HVALS', key)
  elseif key == 'schedule' or key == 'retry' or key == 'dead' or key == 'kiq:dropped'
      or string.find(key, '^kiq:slots:.*:parked$') then
    values = redis.call('ZRANGE', key, 0, -1)
  end
  for _, value in ipairs(values) do
    found[#found + 1] = key
    found[#found + 1] = value
  end
end
return found
"""
ENDS = ("dead", "kiq:dropped")  # where jobs stay
RUNNING = re.compile("kiq:(inflight|hand):")


@dataclass(frozen=True, slots=True)
class Place:
    """A job in a key."""

    key: str
    payload: dict[str, object]

    @property
    def jid(self) -> str:
        return str(self.payload["jid"])

    @property
    def name(self) -> str:
        return str(self.payload["class"])

    @property
    def subject(self) -> str:
        arguments = self.payload["args"]
        return str(arguments[0]) if isinstance(arguments, list) else ""

    @property
    def is_waiting(self) -> bool:
        """Whether it may still begin, and no process has it."""
        return self.key not in ENDS and RUNNING.match(self.key) is None


def jobs_in(store: Store) -> list[Place]:
    """Return all jobs of a Redis.  One round trip."""
    flat = store.call("EVAL", SCRIPT, 0)
    pairs = zip(flat[::2], flat[1::2], strict=True)
    # A parked job stands behind the name of its queue.
    return [Place(key.decode(), ruby_json.decode(raw[raw.index(b"{") :].strip())) for key, raw in pairs]


def twice(places: Iterable[Place]) -> dict[str, list[str]]:
    """Return jid → keys of the jobs that lie in more places than one."""
    places = list(places)
    often = {jid for jid, count in Counter(place.jid for place in places).items() if count > 1}
    keys: dict[str, list[str]] = defaultdict(list)
    for place in places:
        if place.jid in often:
            keys[place.jid].append(place.key)
    return keys
