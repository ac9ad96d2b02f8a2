"""A TCP proxy between clients and Redis that has the faults of a network, when a test asks for them.

In a test:        with Proxy(("127.0.0.1", server.port)) as proxy: Store(proxy.url) …
In a benchmark:   python -m tests.proxy --listen 7000 --to 127.0.0.1:6379 --latency 0.5ms

1. latency      every byte arrives later by so much, in each direction
2. stalled      nothing arrives for a while; what was sent meanwhile arrives afterwards, also what its sender gave up
3. cut          all connections end at once; `away` also refuses new ones
4. lose_replies the command reaches the server, its reply never reaches the caller
5. hold         the caller is cut off, its command waits on the way: it arrives when the test says so
6. halve        the connection ends in the middle of a command
7. rate         so many bytes a second in each direction, over all connections; little of them waits on the way

Faults 4 to 6 are for what a client sends in one write with some bytes in it (`b"LPUSH"`, the digest of a script); a
pipeline is one write.  They are looked for in what one recv returns, which is all of a write up to RECV_BYTES.

Runs in: one thread with one selector, which alone touches sockets and state; controls are functions that are handed
to it, and return when it has run them.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

__all__ = ["Fault", "Proxy"]

T = TypeVar("T")
Address = tuple[str, int]

RECV_BYTES = 1 << 18  # that one recv takes
BACKLOG_BYTES = 1 << 23  # on their way in one direction of a connection, from which on its sender has to wait
SLOW_RECV_BYTES, SLOW_BACKLOG_BYTES = 1 << 14, 1 << 16  # the same on a slow link
TIMEOUT_SECONDS = 5.0  # for connecting to the server, and for the proxy's thread to do what a test asks
FD_SETSIZE = 1_024  # of glibc
IDLE_WAIT_SECONDS = 1.0  # that the loop waits when nothing is on its way
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
EOF_MARK = b""  # travels behind the last byte, so that latency and stalls keep the order


@dataclass(eq=False)
class Fault:
    """A fault of writes with `match` in them, the first `times` of them; made by the proxy's methods.

    hits: how many writes it has had so far.
    """

    kind: str
    match: bytes
    times: int
    hits: int = 0
    held: list[Flow] = field(default_factory=list)


@dataclass(eq=False)
class Flow:
    """One direction of a connection.

    is_up: from the client to the server.  backlog: bytes that were read and not yet delivered.
    """

    source: socket.socket
    target: socket.socket
    is_up: bool
    unsent: bytearray = field(default_factory=bytearray)  # is due, but the target's buffer was full
    backlog: int = 0
    is_read: bool = True  # the source is read; not while the backlog is large
    has_ended: bool = False  # the source has, and is read no more
    is_ending: bool = False  # the target ends when all is delivered
    is_mute: bool = False  # what comes is thrown away, and the connection with it
    kept: bytes = b""  # the write that `hold` keeps
    back: Flow = field(init=False)  # the other direction


class Proxy:
    """to: the server's host and port.  listen: a port, 0 for a free one.  latency: seconds, in each direction.

    rate: bytes per second, in each direction; None for as many as go.
    """

    def __init__(self, to: Address, *, listen: int = 0, latency: float = 0.0, rate: float | None = None) -> None:
        self._to = to
        self._rate = rate
        self._chunk, self._backlog = (
            (RECV_BYTES, BACKLOG_BYTES) if rate is None else (SLOW_RECV_BYTES, SLOW_BACKLOG_BYTES)
        )
        self._free_at = {True: 0.0, False: 0.0}  # when the link has carried what it was given, by direction
        self._selector = selectors.DefaultSelector()
        # Two sockets have the port: one that never listens keeps it while the other one is away.
        self._holder = _bound(listen)
        self.port: int = self._holder.getsockname()[1]
        self._listener = self._listen()
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._orders: deque[Callable[[], None]] = deque()
        self._flows: dict[socket.socket, Flow] = {}  # by the socket that it reads
        # What is on its way, by direction: when it is due, where, what.  Latency is the same for all, so it is sorted.
        self._pending: dict[bool, deque[tuple[float, Flow, bytes]]] = {True: deque(), False: deque()}
        self._latency = {True: latency, False: latency}
        self._stalled = {True: False, False: False}
        self._faults: list[Fault] = []
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self.accepted = 0  # connections so far

    @property
    def url(self) -> str:
        """The address that a client takes, database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    # controls, from any thread

    def delay(self, up: float, down: float) -> None:
        """Set the latency to the server and from it, in seconds; it holds for what comes from now on."""
        self._do(lambda: self._latency.update({True: up, False: down}))

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        """Let nothing arrive in these directions, until `flow`."""
        self._do(lambda: self._stalled.update({True: up, False: down}))

    def flow(self) -> None:
        """End a stall; what was on its way arrives now."""
        self._do(lambda: self._stalled.update({True: False, False: False}))

    @contextmanager
    def stalled(self, *, up: bool = True, down: bool = True) -> Iterator[None]:
        """Stall for a `with` block."""
        self.stall(up=up, down=down)
        try:
            yield
        finally:
            self.flow()

    def cut(self) -> int:
        """End all connections; what was on its way is lost.  Returns how many there were."""
        return self._do(self._cut)

    @contextmanager
    def away(self) -> Iterator[None]:
        """End all connections and take no new ones for a `with` block."""

        def leave() -> None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._cut()

        def come_back() -> None:
            self._listener = self._listen()

        self._do(leave)
        try:
            yield
        finally:
            self._do(come_back)

    def lose_replies(self, match: bytes, times: int = 1) -> Fault:
        """Throw away the server's answer to writes with `match`, and the connection when it comes."""
        return self._add(Fault("lose", match, times))

    def hold(self, match: bytes, times: int = 1) -> Fault:
        """Keep writes with `match` from the server until `release`; their callers are cut off."""
        return self._add(Fault("hold", match, times))

    def halve(self, match: bytes, times: int = 1) -> Fault:
        """Deliver half of a write with `match`, then end the connection."""
        return self._add(Fault("halve", match, times))

    def release(self, fault: Fault) -> None:
        """Deliver what a `hold` has kept, and end the fault."""
        self._do(lambda: self._release(fault))

    def forget(self) -> None:
        """End all faults of writes."""
        self._do(self._faults.clear)

    # life

    def __enter__(self) -> Proxy:
        self._thread = threading.Thread(target=self.run, name="proxy", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections and the thread; from a signal handler, too."""
        self._is_closing = True
        with suppress(OSError):  # closed already
            self._waker.send(b"!")
        if self._thread is not None:
            self._thread.join(TIMEOUT_SECONDS)

    def run(self) -> None:
        """Carry bytes until closed."""
        try:
            while not self._is_closing:
                self._wait()
                for key, events in self._selector.select(0):
                    self._serve(key.fileobj, events)
                self._deliver_due()
        finally:
            self._cut()
            for each in (self._listener, self._holder, self._woken, self._waker):
                each.close()
            self._selector.close()

    # the loop

    def _listen(self) -> socket.socket:
        """Return a socket that takes connections, and is waited for."""
        listener = _bound(self.port)
        listener.setblocking(False)
        if self._rate is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BACKLOG_BYTES)
        listener.listen(512)
        self._selector.register(listener, selectors.EVENT_READ)
        return listener

    def _wait(self) -> None:
        """Wait for a socket, an order or the next byte that is due.

        The selector's own time-out has the resolution of a millisecond, which would be the latency itself.  select()
        takes no descriptor beyond its limit, which a long run of tests may reach.
        """
        dues = [queue[0][0] for is_up, queue in self._pending.items() if queue and not self._stalled[is_up]]
        seconds = max(0.0, min(dues) - time.monotonic()) if dues else IDLE_WAIT_SECONDS
        if self._selector.fileno() < FD_SETSIZE:
            select.select([self._selector], [], [], seconds)
        else:
            self._selector.select(seconds)

    def _serve(self, ready: object, events: int) -> None:
        if ready is self._listener:
            self._accept()
        elif ready is self._woken:
            self._obey()
        elif isinstance(ready, socket.socket):
            if events & selectors.EVENT_WRITE and (flow := self._flows.get(ready)) is not None:
                self._send(flow.back)
            if events & selectors.EVENT_READ and (flow := self._flows.get(ready)) is not None:
                self._receive(flow)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # gone again
            return
        self.accepted += 1
        try:
            server = socket.create_connection(self._to, TIMEOUT_SECONDS)
            if self._rate is not None:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BACKLOG_BYTES)
        except OSError:
            client.close()
            return
        up, down = Flow(client, server, is_up=True), Flow(server, client, is_up=False)
        up.back, down.back = down, up
        for flow in (up, down):
            flow.source.setblocking(False)
            flow.source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._flows[flow.source] = flow
            self._selector.register(flow.source, selectors.EVENT_READ)

    def _receive(self, flow: Flow) -> None:
        try:
            data = flow.source.recv(self._chunk)
        except BlockingIOError:
            return
        except OSError:
            data = EOF_MARK
        if data and flow.is_up and self._faults and (data := self._apply_faults(flow, data)) == EOF_MARK:
            return
        if data and flow.is_mute:
            self._close(flow)
            return
        pending = self._pending[flow.is_up]
        is_held_up = self._rate or self._latency[flow.is_up] or self._stalled[flow.is_up]
        if data and not pending and not flow.unsent and not is_held_up:
            self._hand_over(flow, data)  # nothing to wait for, nothing to wait behind
            return
        flow.backlog += len(data)
        flow.has_ended = not data
        pending.append((self._carried_at(flow.is_up, len(data)) + self._latency[flow.is_up], flow, data))
        if flow.has_ended or flow.backlog >= self._backlog:
            self._watch(flow, is_read=False)

    def _carried_at(self, is_up: bool, size: int) -> float:  # a direction, as everywhere here
        """Return when the link has carried so many bytes more."""
        now = time.monotonic()
        if self._rate is None:
            return now
        self._free_at[is_up] = max(now, self._free_at[is_up]) + size / self._rate
        return self._free_at[is_up]

    def _deliver_due(self) -> None:
        now = time.monotonic()
        for is_up, pending in self._pending.items():
            while pending and pending[0][0] <= now and not self._stalled[is_up]:
                _, flow, data = pending.popleft()
                flow.backlog -= len(data)
                if flow.source not in self._flows:
                    continue
                if not data:
                    flow.is_ending = True
                self._hand_over(flow, data)
                self._read_on(flow)

    def _hand_over(self, flow: Flow, data: bytes) -> None:
        """Send, or keep what does not go out at once."""
        if data and not flow.unsent:
            try:
                data = data[flow.target.send(data) :]
            except BlockingIOError:
                pass
            except OSError:
                self._close(flow)
                return
        if data:
            flow.unsent += data
            flow.backlog += len(data)
            self._watch(flow.back, wants_write=True)
        elif flow.is_ending and not flow.unsent:
            self._close(flow)

    def _send(self, flow: Flow) -> None:
        """Go on with what did not go out at once."""
        try:
            sent = flow.target.send(flow.unsent)
        except BlockingIOError:
            return
        except OSError:
            self._close(flow)
            return
        del flow.unsent[:sent]
        flow.backlog -= sent
        if not flow.unsent:
            self._watch(flow.back, wants_write=False)
            if flow.is_ending:
                self._close(flow)
        self._read_on(flow)

    def _read_on(self, flow: Flow) -> None:
        """Read again from a source that had to wait, once little of it is on its way."""
        if (
            not (flow.is_read or flow.has_ended or flow.kept)
            and flow.backlog < self._backlog
            and flow.source in self._flows
        ):
            self._watch(flow, is_read=True)

    def _watch(self, flow: Flow, *, is_read: bool | None = None, wants_write: bool | None = None) -> None:
        """Change what is waited for at the flow's source; it is also where the other direction writes to."""
        flow.is_read = flow.is_read if is_read is None else is_read
        wants_write = bool(flow.back.unsent) if wants_write is None else wants_write
        events = flow.is_read * selectors.EVENT_READ | wants_write * selectors.EVENT_WRITE
        is_registered = flow.source in self._selector.get_map()
        if events and is_registered:
            self._selector.modify(flow.source, events)
        elif events:
            self._selector.register(flow.source, events)
        elif is_registered:
            self._selector.unregister(flow.source)

    def _close(self, flow: Flow) -> None:
        """End a connection, both directions of it."""
        for each in (flow, flow.back):
            if self._flows.pop(each.source, None) is not None:
                if each.source in self._selector.get_map():
                    self._selector.unregister(each.source)
                each.source.close()

    def _cut(self) -> int:
        flows = [flow for flow in self._flows.values() if flow.is_up]
        for flow in flows:
            self._close(flow)
        return len(flows)

    # faults

    def _add(self, fault: Fault) -> Fault:
        self._do(lambda: self._faults.append(fault))
        return fault

    def _apply_faults(self, flow: Flow, data: bytes) -> bytes:
        """Return what is to be delivered of a write, after the first fault that matches it; b"" for nothing."""
        for fault in self._faults:
            if fault.hits < fault.times and fault.match in data:
                fault.hits += 1
                return self._suffer(flow, data, fault)
        return data

    def _suffer(self, flow: Flow, data: bytes, fault: Fault) -> bytes:
        if fault.kind == "lose":
            flow.back.is_mute = True
            return data
        if fault.kind == "hold":
            flow.kept = data
            flow.back.is_mute = True
            fault.held.append(flow)
            self._watch(flow, is_read=False)
            flow.source.shutdown(socket.SHUT_RDWR)  # its caller sees the end; the socket itself is closed with the flow
            return EOF_MARK
        self._hand_over(flow, data[: len(data) // 2])
        self._close(flow)
        return EOF_MARK

    def _release(self, fault: Fault) -> None:
        if fault in self._faults:
            self._faults.remove(fault)
        for flow in fault.held:
            if flow.source in self._flows:
                self._hand_over(flow, flow.kept)  # what the server answers closes the rest (is_mute)
        fault.held.clear()

    # orders

    def _do(self, order: Callable[[], T]) -> T:
        """Have the loop run a function; return its result."""
        future: Future[T] = Future()

        def obey() -> None:
            try:
                future.set_result(order())
            except Exception as error:
                future.set_exception(error)

        self._orders.append(obey)
        self._waker.send(b"!")
        return future.result(TIMEOUT_SECONDS)

    def _obey(self) -> None:
        try:
            self._woken.recv(4_096)
        except BlockingIOError:
            return
        while self._orders:
            self._orders.popleft()()


def _bound(port: int) -> socket.socket:
    """Return a socket at a port of this host, 0 for a free one; others of this process may have the same port."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def seconds_of(text: str) -> float:
    """Return the seconds of `0.5ms`, `250us` or `2s`."""
    found = re.fullmatch(r"([0-9.]+)(us|ms|s)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 0.5ms, 250us or 2s")
    return float(found[1]) * UNITS[found[2]]


def address_of(text: str) -> Address:
    """Return host and port of `HOST:PORT`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no address; write HOST:PORT")
    return host or "127.0.0.1", int(port)


def main() -> None:
    """Run a proxy until TERM or INT; the first line of output is the port."""
    parser = argparse.ArgumentParser(prog="python -m tests.proxy", description="a TCP proxy with latency")
    parser.add_argument("--listen", type=int, default=0, metavar="PORT", help="default: a free one, which is printed")
    parser.add_argument("--to", type=address_of, required=True, metavar="HOST:PORT")
    parser.add_argument("--latency", type=seconds_of, default=0.0, metavar="TIME", help="in each direction, like 0.5ms")
    options = parser.parse_args()
    proxy = Proxy(options.to, listen=options.listen, latency=options.latency)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: proxy.close())
    print(proxy.port, flush=True)
    proxy.run()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
