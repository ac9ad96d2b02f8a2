"""Wait lists: the lists into which pushes are moved for idle processes that wait for them.

Wake lists belong to a queue; what lies there is a signal, and a reserve takes it.  Hand lists belong to a process; what
lies there is in flight (lua/hand_lists.lua).
return_wake_lists   wake lists → queues, before a stop and after a recovery
register_hands      hand lists, before a process waits with them
are_filled          whether a push came to a wait that was given up; forget_empty_hands: no more look at it
stale_hands         dead processes whose hand lists a late command may still fill
forget_hands        those of a process that has left
end_hand_waits      end the waits of all processes for one queue, for it is paused
paused_queues       which queues were paused while a process began to wait
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kiqcluster.errors import RedisRefused
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store.connection import Connection
from kiqcluster.store.engine.units import Member
from kiqcluster.store.scripts import (
    REGISTER_HANDS,
    RETURN_WAKE_LISTS,
    STALE_HANDS,
    Call,
    Word,
    run_script,
    run_scripts_each,
    sliced,
)
from kiqcluster.store.store import Store
from kiqcluster.store.wire import ErrorReply, WrongType

__all__ = [
    "HANDS_LOOK_SECONDS",
    "HANDS_MEMORY_SECONDS",
    "MAX_COMMANDS",
    "MAX_QUEUES",
    "are_filled",
    "end_hand_waits",
    "forget_empty_hands",
    "forget_hands",
    "paused_queues",
    "register_hands",
    "return_wake_lists",
    "stale_hands",
]

MAX_QUEUES = 100  # of one command or script: the server has other clients
MAX_COMMANDS = 50  # of these in one round trip
MAX_MOVED_PAYLOADS = 1_000  # from one wake list, in one call of the script
HANDS_LOOK_SECONDS = 60.0  # between looks at the hand lists of a process; more often soon after its death
HANDS_MEMORY_SECONDS = 3_600.0  # that those of a dead process are remembered: longer than a command can be on its way
MAX_STALE_HANDS = 10  # processes that one look returns
MAX_WAITS_PER_ROUND_TRIP = 1_000  # processes whose waits are read, and waits that are ended


def return_wake_lists(connection: Connection, keys: Keys, queues: Sequence[str], *, suspects_stay: bool = False) -> int:
    """Move the jobs in the wake lists of these queues back to where they are fetched next, in order.

    suspects_stay: whether suspects stay there, where only a reserve finds them.  Returns how many do.
    Needs no membership.  A list that Redis refuses to move stays where it is.  Raises StoreError.
    One command per MAX_QUEUES queues, MAX_COMMANDS in a round trip; one more round trip of scripts if a list has jobs.
    """
    stayed = 0
    for slices in sliced(sliced(queues, MAX_QUEUES), MAX_COMMANDS):
        counts = connection.exchange_each([("EXISTS", *map(keys.wake, names)) for names in slices])
        # After a refusal too: some keys may be allowed.
        filled = [names for names, found in zip(slices, counts, strict=True) if isinstance(found, ErrorReply) or found]
        if not filled:
            continue
        replies = run_scripts_each(connection, [_return_call(keys, names, suspects_stay) for names in filled])
        refused = [names for names, reply in zip(filled, replies, strict=True) if isinstance(reply, ErrorReply)]
        for names in refused:  # as a whole, because some of its keys are forbidden
            replies += run_scripts_each(connection, [_return_call(keys, [name], suspects_stay) for name in names])
        stayed += sum(reply[1] for reply in replies if not isinstance(reply, ErrorReply))
    return stayed


def _return_call(keys: Keys, queues: Sequence[str], suspects_stay: bool) -> Call:
    pairs = [key for name in queues for key in (keys.wake(name), keys.queue(name))]
    return Call(RETURN_WAKE_LISTS, [keys.suspects, *pairs], [MAX_MOVED_PAYLOADS, int(suspects_stay)])


def register_hands(
    store: Store, member: Member, tokens: Mapping[str, str], client_ids: Mapping[str, int], max_beat_age: float
) -> set[str] | None:
    """Register hand lists; return the queues whose pushes may be moved into theirs, None when the member is fenced.

    tokens, client_ids: queue → token of the list, and id of the connection that will wait, 0 if not known.
    max_beat_age: seconds; a process that has not beaten for longer may not wait so.  Paused queues are refused, and all
    while there are suspects.  One round trip.  May be sent again.  Raises StoreError.
    """
    keys = store.keys
    names = [keys.members, keys.hands(member.identity), keys.hand_owners, keys.beats, keys.suspects, keys.paused]
    arguments: list[Word] = [member.identity, member.padded_epoch, round(max_beat_age * 1_000)]
    arguments.append(round(HANDS_LOOK_SECONDS * 1_000))
    for queue, token in tokens.items():
        arguments += (f"{token}:{queue}", queue, client_ids[queue])
    reply = run_script(store, Call(REGISTER_HANDS, names, arguments))
    if reply[0] == b"FENCED":
        return None
    return {queue for queue, is_open in zip(tokens, reply[1:], strict=True) if is_open}


def are_filled(store: Store, identity: str, fields: Sequence[str]) -> bool:
    """Return whether a payload lies in one of these hand lists.  One round trip."""
    return bool(fields) and bool(store.call("EXISTS", *(store.keys.hand(identity, field) for field in fields)))


def forget_empty_hands(store: Store, identity: str, fields: Sequence[str]) -> None:
    """Forget hand lists that are empty, and that no wait fills any more.  One round trip."""
    store.call("HDEL", store.keys.hands(identity), *fields)


def stale_hands(store: Store) -> list[str]:
    """Return dead processes whose hand lists the caller should give back, by `Engine.recover`.

    A command that was late may have moved a payload there after they were recovered.  One round trip.
    """
    arguments: list[Word] = [store.keys.inflight(""), MAX_STALE_HANDS]
    arguments += [round(each * 1_000) for each in (HANDS_LOOK_SECONDS, HANDS_MEMORY_SECONDS)]
    found = run_script(store, Call(STALE_HANDS, [store.keys.hand_owners, store.keys.members], arguments))
    return [identity.decode(errors="replace") for identity in found]


def forget_hands(connection: Connection, keys: Keys, identity: str) -> None:
    """Forget the hand lists of a process that has left, and whose waits have ended.  One round trip.

    If Redis refuses that, a look at stale hand lists forgets them later.
    """
    connection.exchange_each([("UNLINK", keys.hands(identity)), ("ZREM", keys.hand_owners, identity)])


def end_hand_waits(store: Store, queue: str) -> int:
    """End the waits of all processes that would move a push to this queue to a process; return how many there were.

    A pause closes a queue to reserves; a wait that is armed already does not ask, and would start one more job.
    They wait again, unless the queue is paused now.  Where Redis forbids CLIENT LIST or CLIENT KILL they end by
    themselves, within 20 seconds.  Three round trips per MAX_WAITS_PER_ROUND_TRIP processes.  Raises StoreError.
    """
    ended = 0
    (owners,) = store.read_each([("ZRANGE", store.keys.hand_owners, 0, -1)])
    if isinstance(owners, WrongType):  # then nobody waits so
        return 0
    for names in sliced(owners, MAX_WAITS_PER_ROUND_TRIP):
        replies = store.read_each([("HGETALL", store.keys.hands(name.decode(errors="replace"))) for name in names])
        ids = [each for reply in replies if isinstance(reply, list) for each in _waiting_for(queue, reply)]
        with store.borrowed() as connection:
            if ids := _blocked(connection, ids):
                killed = connection.exchange_each([("CLIENT", "KILL", "ID", each) for each in ids])
                ended += sum(not isinstance(reply, ErrorReply) and reply == 1 for reply in killed)
    return ended


def paused_queues(store: Store, queues: Sequence[str]) -> list[str]:
    """Return those of these queues that are paused; none if that key is of a wrong type.  One round trip."""
    try:
        found = store.call("SMISMEMBER", store.keys.paused, *queues)
    except RedisRefused:  # the next reserve tells of the key
        return []
    return [queue for queue, is_paused in zip(queues, found, strict=True) if is_paused]


def _waiting_for(queue: str, fields: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the ids of the connections that wait for a push to the queue.  fields: of kiq:hands:<identity>, flat."""
    for field, client_id in zip(fields[::2], fields[1::2], strict=True):
        if field.partition(b":")[2] == queue.encode() and client_id.isdigit() and client_id != b"0":
            yield client_id


def _blocked(connection: Connection, ids: Sequence[bytes]) -> list[bytes]:
    """Return those that wait by BLMOVE now.  One round trip.

    After a restart of Redis, or a fail-over, an id may be anybody's.
    """
    if not ids:
        return []
    (listed,) = connection.exchange_each([("CLIENT", "LIST", "ID", *ids)])
    if isinstance(listed, ErrorReply):  # forbidden
        return []
    waiting = {line.partition(b" ")[0] for line in listed.splitlines() if b" cmd=blmove " in line}
    return [each for each in ids if b"id=" + each in waiting]
