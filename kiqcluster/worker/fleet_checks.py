"""FleetChecks: warns of other hosts and processes on the same Redis that disagree with this one.

Runs in: the heartbeat's thread.
1. compare_clocks        the clock of this host and that of Redis
2. check_processes       a few of them at random.  Ruby's: the setting ruby_json; of this application: routing rules and
                         shards; of another one: what both declare under one name (application/shared_names)

An application's declarations are in Redis under the digest that its processes publish, so each is read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiqcluster.application.shared_names import consequence_of, digest_of
from kiqcluster.control.process_registry import field_commands, live_fields, read_object
from kiqcluster.process.runtime import Runtime
from kiqcluster.sidekiq.routing import digest
from kiqcluster.store.shards import shards_digest

__all__ = ["FleetChecks", "json_doubt"]

NONE = "none"  # in place of a digest, where there are no rules
MAX_SKEW_SECONDS = 30.0  # that two clocks may differ; a caller further ahead is not believed (server_clock.lua)
MAX_PROCESSES_CHECKED = 5  # processes that are looked at with each check, so that a large fleet costs no more
DECLARED_SECONDS = 86_400  # that declarations are kept after their last use


def json_doubt(sidekiq: str, ruby_json: str, *, is_declared: bool) -> str:
    """Return the event that says why floats may be written otherwise than by this Sidekiq's json gem, "" for no reason.

    8.1 requires json 2.16; those before 7 are of Rubies that come with json 2.6 or earlier.  7 and 8.0 may have either,
    and nothing in Redis says which: somebody has to look.  is_declared: whether somebody has set `ruby_json`.
    """
    digits = [part for part in sidekiq.split(".")[:2] if part.isdigit()]
    if len(digits) < 2:
        return ""
    release = int(digits[0]), int(digits[1])
    if release >= (8, 1) if ruby_json == "2.6" else release < (7, 0):
        return "ruby_json_doubtful"
    return "" if is_declared or not (7, 0) <= release < (8, 1) else "ruby_json_undeclared"


class FleetChecks:
    """Each warning is logged once, until the reason is gone.

    application: of this process.  names: what it declares under names that all applications share.
    """

    def __init__(self, runtime: Runtime, application: str, names: Mapping[str, str]) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._is_skewed = False
        self._warned_of_json: set[str] = set()  # events
        self._routing = digest(runtime.config.routing)
        self._shards = shards_digest(runtime.config.shards)
        self._warned_digests: set[tuple[str, str]] = set()  # event and digest
        self._application = application
        self._names = names
        self._digest = digest_of(names)
        self._compared: set[tuple[str, str]] = set()  # application and digest of its declarations
        self._warned_names: set[tuple[str, str, str]] = set()  # application, name and what it declares

    def compare_clocks(self, seconds: int, microseconds: int) -> None:
        """Say when this host's clock and Redis' begin to differ by more than MAX_SKEW_SECONDS."""
        skew = self._runtime.clock.now() - (seconds + microseconds / 1e6)
        is_skewed = abs(skew) > MAX_SKEW_SECONDS
        if is_skewed and not self._is_skewed:
            direction = "ahead of" if skew > 0 else "behind"
            self._runtime.events.emit("clock_skewed", seconds=abs(skew), direction=direction)
        self._is_skewed = is_skewed

    def check_processes(self) -> None:
        """Warn of processes that disagree with this one.  Looks at a few at random.

        Two round trips; one more where the application declares shared names, and for each other one that is new.
        """
        self._keep_declared()
        keys = self._store.keys
        identities = self._store.call("SRANDMEMBER", keys.processes, MAX_PROCESSES_CHECKED)
        names = [name.decode(errors="replace") for name in identities]
        replies = self._store.pipeline(field_commands(keys, names, "info")) if names else []
        for name, info in zip(names, live_fields(replies), strict=True):
            about = read_object(info)
            if "kiqcluster" not in (about.get("labels") or ()):
                self._compare_json(name, str(about.get("version") or ""))
            elif (about.get("application") or self._application) == self._application:
                self._compare("routing_differs", name, about.get("routing") or "", self._routing)
                self._compare("shards_differ", name, about.get("shards") or "", self._shards)
            else:
                self._compare_declared(name, about)

    def _keep_declared(self) -> None:
        """Have Redis keep what this application declares, for processes of others."""
        key = self._store.keys.declared(self._digest)
        if self._digest and not self._store.call("EXPIRE", key, DECLARED_SECONDS):
            fields = [word for pair in self._names.items() for word in pair]
            self._store.pipeline([("HSET", key, *fields), ("EXPIRE", key, DECLARED_SECONDS)])

    def _compare_declared(self, identity: str, about: Mapping[str, Any]) -> None:
        """Warn of names that another application declares otherwise, once for each."""
        other, digest = str(about["application"]), about.get("declared")
        if not isinstance(digest, str) or not self._digest or (other, digest) in self._compared:
            return
        (reply,) = self._store.read_each([("HGETALL", self._store.keys.declared(digest))])
        words = [each.decode(errors="replace") for each in reply] if isinstance(reply, list) else []
        theirs = dict(zip(words[::2], words[1::2], strict=True))
        if theirs:  # else it has not written them yet
            self._compared.add((other, digest))
        for name in sorted(theirs.keys() & self._names.keys()):
            warning = other, name, theirs[name]
            if theirs[name] != self._names[name] and warning not in self._warned_names:
                self._warned_names.add(warning)
                self._runtime.events.emit(
                    "declarations_differ",
                    name=name,
                    application=self._application,
                    declared=self._names[name],
                    other=other,
                    identity=identity,
                    theirs=theirs[name],
                    consequence=consequence_of(name),
                )

    def _compare_json(self, name: str, version: str) -> None:
        """Warn, once, of a Ruby process that writes floats otherwise than the setting says, or may do so."""
        config = self._runtime.config
        doubt = json_doubt(version, config.ruby_json, is_declared="ruby_json" in config.declared)
        if doubt and doubt not in self._warned_of_json:
            self._warned_of_json.add(doubt)
            self._runtime.events.emit(doubt, identity=name, sidekiq=version, setting=config.ruby_json)

    def _compare(self, event: str, name: str, theirs: object, ours: str) -> None:
        """Warn of a process with another digest, once for each."""
        if theirs != ours and isinstance(theirs, str) and (event, theirs) not in self._warned_digests:
            self._warned_digests.add((event, theirs))
            self._runtime.events.emit(event, identity=name, theirs=theirs or NONE, ours=ours or NONE)
