"""The engine's Redis half: the operations of docs/engine.md as typed calls.

join       become a member, before the first reserve (R1)
exchange   settle a batch and reserve a batch, in one round trip (R2, R4)
find_work  find the queues from which a reserve would bring units
forbidden_queues   find the queues that an ACL forbids, after a reserve that was refused as a whole
settle     settle alone; may be sent again
begin_run  decide by the rows of its features whether a unit may run
resync     after a lost reply: fence, and give back units that the caller does not hold (R3)
recover    end a membership, the caller's own or a dead process', and give its units back (R7)
return_wake_lists   move jobs of wake lists back to their queues: before a stop, and after a recovery
register_hands      hand lists, into which pushes to an idle process are moved
beat       record that processes are alive, and receive members that have been silent for too long (R8)
server_of  identify the Redis process that answers
read_due, move_due   schedule and retry set → queues (entry_moves.py)
trim_dead  drop entries of the dead set that are too old or too many

The worker decides when to call them.  It has to see every loss and fence, so nothing here retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost
from kiqcluster.sidekiq.keys import FORMAT_VERSION, Keys
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.store.connection import Connection
from kiqcluster.store.engine.begin_calls import Begin, Begun, begin_units, may_hold
from kiqcluster.store.engine.reserve_calls import RENAME_HINT, ReserveCalls, read_reserved
from kiqcluster.store.engine.settle_calls import FIXED_SETTLE_KEYS, SettleCalls, read_refusals
from kiqcluster.store.engine.units import (
    ANY_DEATHS,
    GO,
    Beat,
    BeginVerdict,
    Exchange,
    Limits,
    Member,
    Refusals,
    Reserved,
    Settlement,
    Unit,
)
from kiqcluster.store.engine.wait_lists import MAX_QUEUES, register_hands, return_wake_lists
from kiqcluster.store.entry_moves import DeadSetLimits, Dropped, Due, Move, move_entries, read_due, trim_dead
from kiqcluster.store.scripts import (
    BEAT,
    JOIN,
    RECOVER,
    RESYNC,
    Call,
    Word,
    begin_scripts,
    finish_scripts,
    run_scripts_each,
    sliced,
)
from kiqcluster.store.store import Store
from kiqcluster.store.wire import ErrorReply, Reply, WrongType, about_keys

__all__ = [
    "MAX_NAMES",
    "NO_PERMISSION",
    "REFUSED_ENTRY_DELAY_SECONDS",
    "Engine",
]

MAX_RETURNED, MAX_RETURNED_BYTES = 200, 1_000_000  # at which one recover or resync script stops (at least one unit)
READ_QUEUES_TIMEOUT_SECONDS = 1.0  # of a check of the queues; a reserve waits longer
SUSPECT_TTL_SECONDS = 72 * 3_600  # after the last death
MAX_NAMES = 1_000  # of queues, read by one command
NO_PERMISSION = "NOPERM"  # code of a refusal
MAX_MEMBERS_PER_SCAN = 1_000  # members read in one round trip
REFUSED_ENTRY_DELAY_SECONDS = 60.0  # until a due entry that its queue refused is tried again
MAX_DUE = 100  # due entries that are read, and moved, at a time
MAX_DUE_BYTES = 250_000  # … and bytes: a move sends them twice, and a slow line must get through within the time limit


class Engine:
    """The scripts, called with the keys and arguments of one store.

    on_dropped: called with the entries that the dead set dropped, in the thread that settled or moved.
    gates: further rows of the table of gates in reserve.lua (operation and key), besides that of paused queues.
    """

    def __init__(
        self,
        store: Store,
        limits: DeadSetLimits,
        on_dropped: Callable[[Dropped], None] = lambda _: None,
        gates: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.store = store
        self._keys: Keys = store.keys
        self._kinds = {
            **dict.fromkeys((store.keys.members, store.keys.suspects), b"hash"),
            store.keys.beats: b"zset",
            store.keys.format: b"string",
        }
        self._limits = limits
        self._reserve_calls = ReserveCalls(store.keys, [("member_of", store.keys.paused), *gates])
        self._has_gates = bool(gates)
        self._settle_calls = SettleCalls(store.keys, limits)
        self._on_dropped = on_dropped

    def join(self, member: Member) -> None:
        """Enter the membership.  May be sent again before the first reserve.  One round trip.

        Raises StoreError; RedisRefused also when the keys below `kiq:` have a format that this release cannot read.
        """
        keys = [self._keys.members, self._keys.beats, self._keys.format]
        arguments: list[Word] = [member.identity, f"{member.padded_epoch} {member.record}", FORMAT_VERSION]
        with self.store.borrowed() as connection:
            reply = self._run(connection, Call(JOIN, keys, arguments))
        if reply:
            raise RedisRefused(
                f"FORMAT a newer release has put format {reply} into force on this Redis, and this one writes format "
                f"{FORMAT_VERSION}, which workers of the newer one cannot read. Start the newer release"
            )

    def exchange(
        self,
        connection: Connection,
        member: Member,
        call: int,
        limits: Limits | None,
        done: Sequence[Settlement],
        now: float,
        *,
        most_deaths: int = ANY_DEATHS,
    ) -> tuple[Refusals, Reserved | None]:
        """Settle `done` and reserve units from the queues of `limits`, in its order.

        call: a number that grows with each reserve of this epoch.  limits: see Limits; None skips the reserve.
        most_deaths: of a suspect that may be reserved, 0 for no suspects; a suspect comes alone.
        Returns the settlements that Redis refused, and the result of the reserve: one may fail without the other.
        One round trip, O(settlements + queues + units).  Raises RedisUnavailable, ReplyLost.
        """
        return self.finish(connection, self.begin(connection, member, call, limits, done, now, most_deaths=most_deaths))

    def begin(
        self,
        connection: Connection,
        member: Member,
        call: int,
        limits: Limits | None,
        done: Sequence[Settlement],
        now: float,
        *,
        most_deaths: int = ANY_DEATHS,
    ) -> Exchange:
        """Send an exchange; call `finish` next on that connection, from any thread."""
        calls = [*self._settle_calls.make(done, now)]
        if limits is not None:
            calls.append(self._reserve_calls.make(member, call, limits, most_deaths))
        begin_scripts(connection, calls)
        return Exchange(calls, done, member, call, limits, now)

    def finish(self, connection: Connection, sent: Exchange) -> tuple[Refusals, Reserved | None]:
        """Return the result of an exchange that was sent.

        One more round trip when Redis refused a settle as a whole (one key is forbidden): it settles units one by one.
        """
        replies = finish_scripts(connection, sent.calls)
        reserved = None
        if sent.limits is not None:
            reply = self._explained(connection, replies.pop(), sent.calls[-1])
            reserved = read_reserved(reply, sent.member, sent.call, list(sent.limits))
        if any(isinstance(reply, ErrorReply) for reply in replies):
            return self._settle_each(connection, sent.done, sent.now), reserved
        return self._read_settled(replies, sent.done), reserved

    def _settle_each(self, connection: Connection, done: Sequence[Settlement], now: float) -> Refusals:
        """Settle each unit by a script of its own; return the refusals.  One round trip.

        Raises ReplyLost for every failure: the units reserved with these are in flight, and would be forgotten.
        """
        calls = [call for each in done for call in self._settle_calls.make([each], now)]
        try:
            replies = run_scripts_each(connection, calls)
        except RedisUnavailable as error:
            raise ReplyLost(str(error)) from error
        refusals: Refusals = {}
        for settlement, call, reply in zip(done, calls, replies, strict=True):
            if isinstance(reply, ErrorReply):
                reply = about_keys(reply, call.keys[FIXED_SETTLE_KEYS:] or call.keys)
            refusals.update(self._read_settled([reply], [settlement]))
        return refusals

    def find_work(self, queues: Sequence[str]) -> list[str]:
        """Return queues of which at least one has a job, in the queue or its wake list; none if all are empty.

        Sends one command per MAX_QUEUES queues, and returns all queues of such a slice.  One round trip.  Raises
        StoreError.
        """
        slices = sliced(queues, MAX_QUEUES)
        if not slices:
            return []
        commands = [
            ("EXISTS", *(key for name in names for key in (self._keys.queue(name), self._keys.wake(name))))
            for names in slices
        ]
        with self.store.borrowed() as connection:
            counts = connection.exchange_each(commands, timeout=READ_QUEUES_TIMEOUT_SECONDS)
        # A refused slice is returned as well: the reserve will report the refusal.
        filled = (names for names, found in zip(slices, counts, strict=True) if isinstance(found, ErrorReply) or found)
        return [name for names in filled for name in names]

    def queue_names(self) -> Iterator[str]:
        """Yield the names in the set of queues, possibly some twice; MAX_NAMES per round trip.  Raises StoreError."""
        cursor: bytes = b"0"
        while True:
            cursor, names = self.store.call("SSCAN", self._keys.queues, cursor, "COUNT", MAX_NAMES)
            yield from (name.decode(errors="replace") for name in names)
            if cursor == b"0":
                return

    def forbidden_queues(self, connection: Connection, member: Member, queues: Iterable[str]) -> dict[str, str]:
        """Return queue → Redis' error for queues whose keys an ACL forbids; empty when it forbids other keys too.

        One forbidden key makes Redis refuse a whole reserve without naming the key.  One round trip, O(queues).
        """
        names = list(queues)
        calls = [self._reserve_calls.make(member, 0, {name: (0, 0)} if name else {}, 0) for name in ("", *names)]
        general, *replies = run_scripts_each(connection, calls)
        if isinstance(general, ErrorReply):
            return {}
        return {
            name: str(about_keys(reply, [self._keys.queue(name), self._keys.wake(name)]))
            for name, reply in zip(names, replies, strict=True)
            if isinstance(reply, ErrorReply) and reply.code == NO_PERMISSION
        }

    def settle(self, connection: Connection, done: Sequence[Settlement], now: float) -> int:
        """Write outcomes; return how many tokens were still held.  May be sent again.  One round trip.

        Raises StoreError; after a RedisRefused, all units but the refused ones are settled.
        """
        replies = run_scripts_each(connection, list(self._settle_calls.make(done, now)))
        for reason in self._read_settled(replies, done).values():
            raise RedisRefused(reason)
        return sum(reply[0] for reply in replies if not isinstance(reply, ErrorReply))

    def begin_run(self, unit: Unit, rows: Sequence[Effect]) -> BeginVerdict:
        """Return whether a unit may run.  If so, the changes of its rows are made, and undone when the unit moves.

        rows: of the table of begin.lua.  One round trip, none without rows.  May be sent again.  Raises StoreError.
        """
        if not rows:
            return GO
        if may_hold(rows):
            unit.holds = True  # also when the reply is lost
        (verdict,) = self.begin_units([Begin(unit, rows)]).verdicts
        if isinstance(verdict, ErrorReply):
            raise verdict
        return verdict

    def begin_units(self, begins: Sequence[Begin], ended: Sequence[Unit] = ()) -> Begun:
        """Answer the same for many units, and release what units hold whose runs have `ended`.  One round trip.

        The caller sets `holds` of the units (begin_calls.may_hold).  Raises RedisUnavailable, ReplyLost.
        """
        return begin_units(self.store, begins, ended)

    def resync(
        self, connection: Connection, member: Member, raised: Member, held: Iterable[str]
    ) -> tuple[int, int] | None:
        """Raise the epoch and give back units that the caller does not hold.

        raised: the member with an epoch higher than that of every resync sent before, so that an earlier resync that
        arrives late cannot take away units reserved since.
        Returns the numbers of units given back and left, or None when the member is fenced.  The caller continues as
        `raised` once none are left; until then it calls again, with a higher epoch.
        May be sent again with a higher epoch.  One round trip.
        """
        keys = [self._keys.members, self._keys.inflight(member.identity), self._keys.held(member.identity)]
        keys += [self._keys.suspects, self._keys.beats]
        arguments: list[Word] = [
            member.identity,
            member.padded_epoch,
            raised.padded_epoch,
            self._keys.queue(""),
            MAX_RETURNED,
            MAX_RETURNED_BYTES,
            *held,
        ]
        reply = self._run(connection, Call(RESYNC, keys, arguments))
        return None if reply[0] == b"FENCED" else (int(reply[1]), int(reply[2]))

    def recover(
        self, connection: Connection, identity: str, running: Iterable[str] = (), score: int | None = None
    ) -> int | None:
        """End a membership and give its units back; return how many.

        One round trip per MAX_RETURNED units, or MAX_RETURNED_BYTES.

        running: tokens of the units that may have killed the process, ALL_SUSPECT when they are not known.
        score: with which the member was handed out as silent, None when the process is known to be gone.
        Returns None, and changes nothing, when the process has beaten since, or another process has recovered it.
        """
        recovered, left, refused, words = 0, 1, 0, b""
        keys = [self._keys.members, self._keys.inflight(identity), self._keys.beats, self._keys.suspects]
        keys += [self._keys.held(identity), self._keys.hand_owners]
        seen = "" if score is None else score
        arguments: list[Word] = [identity, self._keys.queue(""), MAX_RETURNED, MAX_RETURNED_BYTES, SUSPECT_TTL_SECONDS]
        arguments += [seen, *running]
        while left:
            reply = self._run(connection, Call(RECOVER, keys, arguments))
            if reply[0] == b"ALIVE":
                return None
            given, left, refused, words = reply
            recovered += given
        if refused:
            raise RedisRefused(f"{words.decode()} ({refused} units of {identity} stay in flight)")
        return recovered

    def beat(
        self,
        connection: Connection,
        mine: Iterable[str],
        silence: float = 0.0,
        most: int = 0,
        pause: float = 0.0,
        timeout: float | None = None,
        *,
        server: str = "",
        is_certain: bool = True,
    ) -> Beat:
        """Record that these processes are alive; receive up to `most` members that were silent for `silence` seconds.

        pause: seconds until the same members are handed to others.  timeout: seconds to wait for the reply.
        is_certain: whether the caller knows by itself that those who live could beat; else it receives some only if the
        beats of the fleet show that.  server: which process of Redis answers, "" where that is not known.
        One round trip, O(log members).
        """
        keys = [self._keys.members, self._keys.beats, self._keys.audit, self._keys.watch]
        arguments: list[Word] = [round(silence * 1_000), most, round(pause * 1_000), server, int(is_certain), *mine]
        at, strangers, handed = self._run(connection, Call(BEAT, keys, arguments), timeout)
        silent, complaint = {}, ""
        for word, score in zip(handed[::2], handed[1::2], strict=True):
            if (identity := _text(word)) is None:  # not one of our members; it must not stop the recovery of others
                complaint = (
                    f"{self._keys.members} or {self._keys.beats} names {word!r}, which is not a process; remove it"
                )
            else:
                silent[identity] = score
        return Beat(at / 1_000, frozenset(word.decode() for word in strangers), silent, complaint)

    def server_of(self, connection: Connection, timeout: float | None = None) -> str:
        """Return an id of the Redis process that answers: another process, after a failover, may lack data.

        "" when Redis does not tell (a host may forbid INFO).  One round trip.
        """
        return connection.server_id(timeout)

    def return_wake_lists(self, connection: Connection, queues: Sequence[str], *, suspects_stay: bool = False) -> int:
        """Move the jobs in the wake lists of these queues back to their queues.  See wait_lists.py."""
        return return_wake_lists(connection, self._keys, queues, suspects_stay=suspects_stay)

    def register_hands(
        self, member: Member, tokens: Mapping[str, str], client_ids: Mapping[str, int], max_beat_age: float
    ) -> set[str] | None:
        """Register hand lists, unless features have gates, which only a reserve asks.  See wait_lists.py."""
        if self._has_gates:
            return set()
        return register_hands(self.store, member, tokens, client_ids, max_beat_age)

    def members(self) -> dict[str, str]:
        """Return identity → record of every member, without the epoch.  One round trip per MAX_MEMBERS_PER_SCAN."""
        found: dict[str, str] = {}
        cursor = b"0"
        with self.store.borrowed() as connection:
            while True:
                (reply,) = connection.exchange_each(
                    [("HSCAN", self._keys.members, cursor, "COUNT", MAX_MEMBERS_PER_SCAN)]
                )
                if isinstance(reply, ErrorReply):
                    raise self._wrong_type(connection, reply, [self._keys.members])
                cursor, flat = reply
                for identity, record in zip(map(_text, flat[::2]), map(_text, flat[1::2]), strict=True):
                    if identity is not None and record is not None:  # else it is not one of our members
                        found[identity] = record.partition(" ")[2]
                if cursor == b"0":
                    return found

    def read_due(self, source: str, now: float) -> Due:
        """Return due entries (at most MAX_DUE and MAX_DUE_BYTES, but at least one), and when the next one is due.

        One round trip.  Raises StoreError.
        """
        return read_due(self.store, source, now, MAX_DUE, MAX_DUE_BYTES)

    def move_due(self, source: str, entries: Sequence[Move], now: float) -> tuple[int, list[str]]:
        """Move entries that are still there and due; return how many moved, and Redis' errors about refused entries.

        A refused entry is due again in REFUSED_ENTRY_DELAY_SECONDS.  One round trip.  Raises StoreError; after a
        RedisRefused nothing was moved.
        """
        later = now + REFUSED_ENTRY_DELAY_SECONDS
        moved = move_entries(self.store, source, entries, now, self._limits, highest=now, refused_until=later)
        self._tell_dropped(moved.dropped)
        return sum(entries[index].verb != "defer" for index in moved.indexes), moved.refusals

    def trim_dead(self, now: float) -> Dropped:
        """Drop a slice of the dead set's entries that are too old or too many.  One round trip.  Raises StoreError."""
        dropped = trim_dead(self.store, now, self._limits)
        self._tell_dropped(dropped)
        return dropped

    def _tell_dropped(self, dropped: Dropped) -> None:
        if any(dropped):
            self._on_dropped(dropped)

    def _read_settled(self, replies: Sequence[Reply | ErrorReply], done: Sequence[Settlement]) -> Refusals:
        for reply in replies:
            if not isinstance(reply, ErrorReply):
                self._tell_dropped(Dropped(*reply[2]))
        return read_refusals(replies, done)

    # calls

    def _run(self, connection: Connection, call: Call, timeout: float | None = None) -> Reply:
        """Return the reply of a script.  Raises RedisRefused, which names a key of a wrong type."""
        reply = self._explained(connection, run_scripts_each(connection, [call], timeout)[0], call)
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    def _explained(self, connection: Connection, reply: Reply | ErrorReply, call: Call) -> Reply | ErrorReply:
        return self._wrong_type(connection, reply, call.keys) if isinstance(reply, ErrorReply) else reply

    def _wrong_type(self, connection: Connection, refusal: ErrorReply, keys: Sequence[str]) -> ErrorReply:
        """Return a refusal that names our key of a wrong type, because Redis names none.

        One round trip, if a wrong type is the reason.
        """
        if not isinstance(refusal, WrongType):
            return refusal
        ours = [key for key in keys if key in self._kinds or key.startswith(self._keys.inflight(""))]
        for key, found in zip(ours, connection.exchange_each([("TYPE", key) for key in ours]), strict=True):
            wanted = self._kinds.get(key, b"hash")
            if not isinstance(found, ErrorReply) and found not in (wanted, b"none"):
                words = f"the key {key} is a {found.decode()} and should be a {wanted.decode()}"
                return WrongType(f"WRONGTYPE {words}. {RENAME_HINT}: RENAME {key} broken:{key}")
        return refusal


def _text(word: bytes) -> str | None:
    """Return a word of Redis as text, None if it is not UTF-8."""
    try:
        return word.decode()
    except UnicodeDecodeError:
        return None
