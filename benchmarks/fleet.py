"""Fleet: what idle processes cost one Redis, by their number.

A simulated process sends what a real one sends while it has no work: the same commands and scripts, at the same rates.
Interpreters are left out: ten thousand do not fit into one machine.

what        connection  how often
sweep       shared      once a second: EXISTS of its queue and wake list
beat        shared      about seven times a minute: beat.lua
heartbeat   heartbeat   every 10 s: its script, and SSCAN; then BLPOP for control messages until the next one
check       heartbeat   every sixth heartbeat: EXISTS of its units
look        shared      about every 9 s: claim_duties.lua, in vain
register    shared      before each wait: register_hands.lua
wait        wait        BLMOVE of 20 s to a hand list, armed again when it ends
reserve     fetch       nothing while it is idle; the connection is open

Polls, and the other duties of the fleet, are done once; the driver does them.

Where the limit of open files does not allow four connections for each process, as many processes as it does allow have
four.  The others send everything over the shared one, and their waits end after a millisecond: they cost Redis the same
commands, but fewer open connections.

    python -m benchmarks.fleet PORT FIRST COUNT FULL        one simulator, until its standard input ends
"""

from __future__ import annotations

import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heapify, heapreplace
from random import Random

from benchmarks.measure import Figures, Scale
from benchmarks.peers import Peer
from benchmarks.stage import ROOT, Failed, Stage
from kiqcluster.control.process_registry import drop_expired
from kiqcluster.process.clock import SystemClock
from kiqcluster.sidekiq.keys import HEARTBEAT_TTL_SECONDS, Keys
from kiqcluster.store import Store
from kiqcluster.store.engine.duties import claim_duties
from kiqcluster.store.engine.engine import MAX_NAMES, Engine
from kiqcluster.store.engine.units import Member
from kiqcluster.store.engine.wait_lists import stale_hands
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.store.scripts import BEAT, CLAIM_DUTIES, PUBLISH, REGISTER_HANDS, Call, Word
from kiqcluster.store.wire import pack
from kiqcluster.worker.fetch.hand_lists import MAX_WAIT_SECONDS
from kiqcluster.worker.heartbeat import BEAT_SECONDS as HEARTBEAT
from kiqcluster.worker.maintenance.duties import due_after
from kiqcluster.worker.maintenance.failure_detector import BEATS_PER_WINDOW, pause
from kiqcluster.worker.maintenance.recovery import MAX_MEMBERS_PER_BEAT

__all__ = ["CONNECTIONS_PER_PROCESS", "FLEET_SIZES", "fleet"]

FLEET_SIZES = (100, 1_000, 10_000)  # idle processes
CONNECTIONS_PER_PROCESS = 4  # of an idle process with one queue
SIMULATOR_PROCESSES = 2
SPARE_FILES = 200  # that a process opens for other things
RECOVER_AFTER_SECONDS = 60.0  # seconds, the default
SWEEP_SECONDS, POLL_SECONDS = 1.0, 5.0
LOOK_SECONDS = 2 * due_after(POLL_SECONDS)  # in a fleet, a process leaves every other poll to others
CHECK_BEATS = 6  # heartbeats from one check to the next
BEAT_GAP_SECONDS = 0.005  # from a heartbeat to its wait
SHORT_WAIT = "0.001"  # seconds that a wait takes on a shared connection
ANSWER_TIMEOUT_SECONDS = 60.0  # that the driver waits for an answer
MIN_TRIP_SHARE = 0.9  # share of the round trips due that the simulators must have made
READ_BYTES, MAX_SOCKETS_PER_TURN = 1 << 16, 512  # bytes, sockets: of one turn of a simulator
ROUND_TRIPS = (
    1 / SWEEP_SECONDS
    + BEATS_PER_WINDOW / 0.85 / RECOVER_AFTER_SECONDS
    + 2 / HEARTBEAT
    + 1 / HEARTBEAT / CHECK_BEATS
    + 2 / MAX_WAIT_SECONDS
    + 1 / LOOK_SECONDS
)
INFO = (
    b'{"hostname":"bench","started_at":1795168740.5,"pid":4711,"tag":"shop","concurrency":10,"queues":["default"],'
    b'"weights":[{"default":0}],"labels":["kiqcluster"],"identity":"%b","version":"0.1.0","embedded":false,'
    b'"capsules":{"default":{"concurrency":10,"mode":"strict","weights":{"default":0}}}}'
)

Course = Iterator[tuple[float, socket.socket, bytes]]  # seconds until the next, where to, what is sent


# the driver


def fleet(stage: Stage, _peer: Peer, scale: Scale) -> Figures:
    """What 100, 1 000 and 10 000 idle processes cost Redis.  growth: of each one of 10 000, over each one of 1 000."""
    figures: Figures = {}
    sizes = FLEET_SIZES if scale.fleet > 1 else FLEET_SIZES[:1]
    for size in sizes:
        stage.clear()
        figures |= {f"{name}_{size}": value for name, value in one_size(stage, size, scale.fleet).items()}
    if len(sizes) == len(FLEET_SIZES):
        figures["growth"] = (
            figures[f"cpu_{FLEET_SIZES[2]}"] * FLEET_SIZES[1] / figures[f"cpu_{FLEET_SIZES[1]}"] / FLEET_SIZES[2]
        )
    return figures


def one_size(stage: Stage, size: int, seconds: float) -> Figures:
    """Return figures per second beside so many idle processes.  Raises Failed when the simulators were too slow."""
    store = Store(stage.server.url, timeout=ANSWER_TIMEOUT_SECONDS)
    engine = Engine(store, DeadSetLimits(1, 1.0))
    for number in range(size):
        engine.join(Member(identity_of(number), 1, f"boot pid:[4026531836] {number} 4711"))
    store.call("SADD", store.keys.queues, "default")
    store.pipeline([("SCRIPT", "LOAD", script.text) for script in (PUBLISH, REGISTER_HANDS, CLAIM_DUTIES)])
    with store.borrowed() as connection:
        engine.beat(connection, [])  # so that the server knows the script
    with simulators(stage, size):
        attend(store, HEARTBEAT + 1)
        before, began = stage.server.redis.info(), time.monotonic()
        attend(store, seconds)
        after, took = stage.server.redis.info(), time.monotonic() - began

    def rate(*names: str) -> float:
        return float(sum(after[name] - before[name] for name in names)) / took

    made, due = rate("total_reads_processed"), ROUND_TRIPS * size
    if made < MIN_TRIP_SHARE * due:
        raise Failed(f"{made:,.0f} round trips/s of {due:,.0f} that were due: the machine was too busy")
    return {
        "cpu": rate("used_cpu_user", "used_cpu_sys"),
        "commands": rate("total_commands_processed"),
        "bytes": rate("total_net_input_bytes", "total_net_output_bytes"),
        "connections": after["connected_clients"],
    }


def attend(store: Store, seconds: float) -> None:
    """Wait, and do what one process of the whole fleet does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))
        due = ("-inf", repr(SystemClock.now()), "LIMIT", 0, 100)
        store.pipeline([("ZRANGEBYSCORE", key, *due) for key in (store.keys.retry, store.keys.schedule)])
        if not claim_duties(store, {"retry": 1.0, "processes": 60.0}).left["processes"]:
            drop_expired(store)
            stale_hands(store)


@contextmanager
def simulators(stage: Stage, size: int) -> Iterator[None]:
    """Run simulators for a `with` block; it begins when all are connected."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = min(files, int(stage.server.redis.config_get()["maxclients"] or 0)) - SPARE_FILES
    full = min(size, max(0, limit - size) // (CONNECTIONS_PER_PROCESS - 1))
    port = str(stage.server.redis.connection_pool.connection_kwargs["port"])
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(SIMULATOR_PROCESSES):
            share = [str(total // SIMULATOR_PROCESSES) for total in (size, full)]
            command = [
                sys.executable,
                "-m",
                "benchmarks.fleet",
                port,
                str(number * (size // SIMULATOR_PROCESSES)),
                *share,
            ]
            running.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for each in running:
            if each.stdout is None or each.stdout.readline() != b"ready\n":
                raise Failed("a simulator did not connect")
        yield
    finally:
        for each in running:
            each.kill()
            each.communicate()


# a simulator


class Simulator:
    """Processes first, first + 1, …; `full` of them have all their connections."""

    def __init__(self, port: int, first: int, count: int, full: int) -> None:
        self._port = port
        self._rng = Random(first)
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}  # by descriptor
        now = time.monotonic()
        self._events: list[tuple[float, int, Course]] = []  # when, order, what comes
        for number in range(first, first + count):
            for course in self._courses(number, has_all=number < first + full):
                self._events.append((now + self._rng.uniform(0, HEARTBEAT), len(self._events), course))
        heapify(self._events)

    def run(self) -> None:
        """Simulate until standard input ends."""
        standard_input, buffer, events, sockets = sys.stdin.fileno(), bytearray(READ_BYTES), self._events, self._sockets
        self._epoll.register(standard_input, select.EPOLLIN)
        while True:
            for number, _ in self._epoll.poll(max(0.0, events[0][0] - time.monotonic()), MAX_SOCKETS_PER_TURN):
                if number == standard_input or not sockets[number].recv_into(buffer):
                    return
            now = time.monotonic()
            while events[0][0] <= now:
                at, order, course = events[0]
                seconds, sock, words = next(course)
                sock.send(words)
                heapreplace(events, (at + seconds, order, course))

    def _connect(self) -> socket.socket:
        """Connect from one of several addresses: each has some 28 000 ports."""
        source = f"127.0.{os.getpid() % 200 + 1}.{2 + len(self._sockets) // 10_000}"
        sock = socket.create_connection(("127.0.0.1", self._port), source_address=(source, 0))
        sock.setblocking(False)
        self._sockets[sock.fileno()] = sock
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        return sock

    def _courses(self, number: int, *, has_all: bool) -> tuple[Course, ...]:
        keys, identity, shared = Keys(), identity_of(number), self._connect()
        heart, waiting, _fetch = (
            [self._connect() for _ in range(CONNECTIONS_PER_PROCESS - 1)] if has_all else [shared] * 3
        )
        waits = (
            (f"{HEARTBEAT - 2 * BEAT_GAP_SECONDS:.3f}", int(MAX_WAIT_SECONDS)) if has_all else (SHORT_WAIT, SHORT_WAIT)
        )
        return (
            self._sweeps(shared, keys),
            self._beats(shared, keys, identity),
            self._heartbeats(heart, keys, identity, waits[0]),
            self._looks(shared, keys),
            self._waits(shared, waiting, keys, identity, waits[1]),
        )

    def _looks(self, sock: socket.socket, keys: Keys) -> Course:
        asked: list[Word] = [3, "retry", "schedule", f"{keys.cron_ticks} app", *[3_600_000] * 3]
        call = Call(CLAIM_DUTIES, [keys.polls, keys.members], asked)
        words = pack(call.command("EVALSHA", CLAIM_DUTIES.digest))
        while True:
            yield LOOK_SECONDS, sock, words

    def _sweeps(self, sock: socket.socket, keys: Keys) -> Course:
        words = pack(("EXISTS", keys.queue("default"), keys.wake("default")))
        while True:
            yield SWEEP_SECONDS, sock, words

    def _beats(self, sock: socket.socket, keys: Keys, identity: str) -> Course:
        limits = (
            round(1e3 * RECOVER_AFTER_SECONDS),
            MAX_MEMBERS_PER_BEAT,
            round(1e3 * RECOVER_AFTER_SECONDS / BEATS_PER_WINDOW),
        )
        call = Call(BEAT, [keys.members, keys.beats, keys.audit, keys.watch], [*limits, "server", 0, identity])
        words = pack(call.command("EVALSHA", BEAT.digest))
        while True:
            yield pause(RECOVER_AFTER_SECONDS, self._rng), sock, words

    def _heartbeats(self, sock: socket.socket, keys: Keys, identity: str, wait: str) -> Course:
        wait_words = pack(("BLPOP", keys.control(identity), keys.signals(identity), wait))
        about: list[Word] = [
            "info",
            INFO % identity.encode(),
            "concurrency",
            10,
            "busy",
            0,
            "quiet",
            "false",
            "rss",
            38_000,
        ]
        fields = [*about, "rtt_us", 400, "beat", "1795168740.25"]
        publish = Call(
            PUBLISH, [keys.processes, keys.process(identity)], [identity, HEARTBEAT_TTL_SECONDS, len(fields), *fields]
        )
        published = [publish.command("EVALSHA", PUBLISH.digest), ("SSCAN", keys.queues, 0, "COUNT", MAX_NAMES)]
        sent, check_words = b"".join(map(pack, published)), pack(("EXISTS", keys.inflight(identity)))
        beat = self._rng.randrange(CHECK_BEATS)
        while True:
            beat += 1
            yield BEAT_GAP_SECONDS, sock, sent
            if beat % CHECK_BEATS == 0:
                yield BEAT_GAP_SECONDS, sock, check_words
            yield HEARTBEAT - BEAT_GAP_SECONDS * (2 if beat % CHECK_BEATS == 0 else 1), sock, wait_words

    def _waits(
        self, shared: socket.socket, sock: socket.socket, keys: Keys, identity: str, wait: float | str
    ) -> Course:
        field = "00000001.h000000001:default"
        names = [keys.members, keys.hands(identity), keys.hand_owners, keys.beats, keys.suspects, keys.paused]
        words: list[Word] = [identity, "00000001", round(1e3 * RECOVER_AFTER_SECONDS), 60_000, field, "default", 1]
        register_words = pack(Call(REGISTER_HANDS, names, words).command("EVALSHA", REGISTER_HANDS.digest))
        wait_words = pack(("BLMOVE", keys.queue("default"), keys.hand(identity, field), "RIGHT", "LEFT", wait))
        while True:
            yield BEAT_GAP_SECONDS, shared, register_words
            yield MAX_WAIT_SECONDS, sock, wait_words


def identity_of(number: int) -> str:
    return f"host-{number // 20}:{number}:{number:012x}"


if __name__ == "__main__":
    simulator = Simulator(*(int(word) for word in sys.argv[1:]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    simulator.run()
