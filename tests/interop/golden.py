"""What real Ruby Sidekiq 6.4.1, 7.3.10 and 8.1.7 left in Redis (tests/golden/, which has its own README)."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiqcluster.store import Store

__all__ = ["VERSIONS", "Golden"]

FOLDER = Path(__file__).resolve().parents[1] / "golden"
VERSIONS = ("6.4.1", "7.3.10", "8.1.7")


@dataclass(frozen=True)
class Golden:
    """keys: key → `{"type", "ttl", "value"}` as the file has it."""

    version: str
    keys: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, version: str) -> Golden:
        return cls(version, json.loads((FOLDER / f"sidekiq-{version}.json").read_text())["keys"])

    @property
    def identity(self) -> str:
        (identity,) = self.keys["processes"]["value"]
        return str(identity)

    @property
    def process(self) -> dict[str, str]:
        fields: dict[str, str] = self.keys[self.identity]["value"]
        return fields

    @property
    def info(self) -> dict[str, Any]:
        info: dict[str, Any] = json.loads(self.process["info"])
        return info

    @property
    def now(self) -> float:
        """When the process has just beaten, epoch seconds."""
        return float(self.process["beat"])

    def jobs(self, key: str) -> dict[str, dict[str, Any]]:
        """Return the payloads of a queue or set by jid, in its order."""
        lines = [each if isinstance(each, str) else each[0] for each in self.keys[key]["value"]]
        return {payload["jid"]: payload for payload in map(json.loads, lines)}

    def load(self, store: Store) -> None:
        """Write everything to an empty database."""
        write = {"string": "SET", "list": "RPUSH", "set": "SADD", "hash": "HSET", "zset": "ZADD"}
        for key, entry in self.keys.items():
            store.call(write[entry["type"]], key, *_words(entry["type"], entry["value"]))
            if entry["ttl"] > 0:
                store.call("EXPIRE", key, entry["ttl"])


def _words(kind: str, value: Any) -> list[bytes]:
    if kind == "string":
        return [_bytes(value)]
    if kind == "hash":
        return [_bytes(word) for pair in value.items() for word in pair]
    if kind == "zset":
        return [_bytes(word) for member, score in value for word in (repr(score), member)]
    return [_bytes(each) for each in value]


def _bytes(value: Any) -> bytes:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else str(value).encode()
