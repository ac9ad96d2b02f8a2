"""Systemd: notifies systemd of the state of the cluster, by datagrams to the socket NOTIFY_SOCKET.

Runs in: the supervisor's loop, once a turn.  A message that cannot be sent is sent at a later turn; nothing blocks.
1. READY       enough slots are ready; sent again after a reload or a rolling restart
2. RELOADING   one of these is under way; with the time, which Type=notify-reload compares with that of its request
3. STOPPING    the cluster stops.  While it waits for jobs, or slots boot, EXTEND_TIMEOUT_USEC has systemd wait
4. STATUS      one line for `systemctl status`
5. WATCHDOG    at half of the interval.  The loop itself sends it, so that systemd restarts a loop that hangs

Without NOTIFY_SOCKET nothing is sent.  Source: sd_notify(3) and systemd.service(5) of systemd 252-258.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from math import ceil, inf

from kiqcluster.process.clock import Clock
from kiqcluster.supervisor.cluster.state import ClusterState

__all__ = ["SystemdNotifier", "status_line", "unknown_limit"]

EXTENSION_SECONDS = 15.0  # by which each message extends a deadline of systemd's
EXTENSION_INTERVAL_SECONDS = 5.0
STATUS_INTERVAL_SECONDS = 1.0  # between two status lines that come alone
RETRY_SECONDS = 1.0  # after which a message that could not be sent is tried again
MINUTES_ABOVE_SECONDS = 120.0  # a longer span is shown in minutes
STARTING, RUNNING, RELOADING, STOPPING = "starting", "running", "reloading", "stopping"
WORDS = {RUNNING: "READY=1", STOPPING: "STOPPING=1"}  # RELOADING carries the time as well


class SystemdNotifier:
    """Notifies systemd of changes.  environ: systemd's variables are removed from it, so that no child uses them.

    clock: as systemd's, it goes on while this process stands still.  running: the clock of the state's deadlines; None
    for the same.
    """

    def __init__(self, environ: MutableMapping[str, str], clock: Clock, running: Clock | None = None) -> None:
        self._clock = clock
        self._running = running or clock
        self._address = _address(environ.pop("NOTIFY_SOCKET", ""))
        self._watchdog_pause = _watchdog_pause(environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", ""))
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        self._phase = STARTING
        self._ended = 0  # reloads and rolling restarts that were reported
        self._status = ""
        self._is_status_late = False
        self._status_due = self._extension_due = self._watchdog_due = self._retry_due = -inf

    def report(self, state: ClusterState, ready: bool, *, reloading: bool = False) -> None:
        """Send changes since the last turn, and messages that are due.

        ready: whether enough slots are ready.  reloading: whether a reload (HUP) is under way.
        """
        if self._socket is None:
            return
        now = self._clock.monotonic()
        self._send_phase(state, _phase(state, self._phase, ready=ready, reloading=reloading), now)
        self._send_status(self._status_line(state), now)
        self._extend(state, now)
        if self._watchdog_pause and now >= self._watchdog_due and self._send("WATCHDOG=1"):
            self._watchdog_due = now + self._watchdog_pause

    def next_due(self) -> float:
        """Return the monotonic second by which report() has to be called again; inf for never."""
        if self._socket is None:
            return inf
        due = min(
            self._watchdog_due if self._watchdog_pause else inf,
            self._extension_due,
            self._status_due if self._is_status_late else inf,
        )
        return max(due, self._retry_due)

    def due_in(self) -> float:
        """Return the seconds until next_due()."""
        return self.next_due() - self._clock.monotonic()

    def _status_line(self, state: ClusterState) -> str:
        return status_line(state, self._running.monotonic())

    def close(self) -> None:
        """Close the socket; in a child this does not affect the supervisor."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send_phase(self, state: ClusterState, phase: str, now: float) -> None:
        ended = state.reloads.total() + state.rolls.total()
        if self._phase == phase == RUNNING and ended != self._ended and not self._enter(RELOADING, state, now):
            return
        # A reload can begin and end within a turn, as with a broken file: systemd waits for both messages.
        if phase != self._phase and not self._enter(phase, state, now):
            return
        self._ended = ended

    def _enter(self, phase: str, state: ClusterState, now: float) -> bool:
        """Send that a phase begins; return whether that was possible."""
        word = WORDS.get(phase) or f"RELOADING=1\nMONOTONIC_USEC={now * 1e6:.0f}"
        status = self._status_line(state)
        if not self._send(f"{word}\nSTATUS={status}"):
            return False
        self._phase, self._extension_due = phase, now
        self._on_status_sent(status, now)
        return True

    def _send_status(self, status: str, now: float) -> None:
        self._is_status_late = status != self._status
        if self._is_status_late and now >= self._status_due and self._send(f"STATUS={status}"):
            self._on_status_sent(status, now)

    def _on_status_sent(self, status: str, now: float) -> None:
        self._status, self._status_due, self._is_status_late = status, now + STATUS_INTERVAL_SECONDS, False

    def _extend(self, state: ClusterState, now: float) -> None:
        """Extend systemd's deadline, except while the cluster runs and once the time of a stop is over."""
        if self._phase == RUNNING or not state.seconds_left(self._running.monotonic()):
            self._extension_due = inf
        elif now >= self._extension_due and self._send(f"EXTEND_TIMEOUT_USEC={EXTENSION_SECONDS * 1e6:.0f}"):
            self._extension_due = now + EXTENSION_INTERVAL_SECONDS

    def _send(self, message: str) -> bool:
        """Send a message; return whether that was possible.  A busy or missing manager must not affect the cluster."""
        assert self._socket is not None
        try:
            self._socket.sendto(message.encode(errors="replace"), self._address)
        except OSError:
            self._retry_due = self._clock.monotonic() + RETRY_SECONDS
            return False
        return True


def _phase(state: ClusterState, before: str, *, ready: bool, reloading: bool) -> str:
    if state.is_stopping:
        return STOPPING
    if before == STARTING:
        return RUNNING if ready else STARTING
    return RELOADING if reloading or state.is_rolling else RUNNING


def _address(name: str) -> str:
    """Return the address for a name, empty if it is not a unix socket (vsock: is for virtual machines)."""
    if name.startswith("@"):
        return f"\0{name[1:]}"
    return name if name.startswith("/") else ""


def _watchdog_pause(microseconds: str, pid: str) -> float:
    """Return the seconds between two WATCHDOG messages: half of systemd's limit; 0 if it wants none from us."""
    is_ours = not pid or pid == str(os.getpid())
    return int(microseconds) / 2e6 if is_ours and microseconds.isascii() and microseconds.isdigit() else 0.0


def status_line(state: ClusterState, now: float) -> str:
    """Return the status of the cluster in one line, whatever characters its names have.  Pure."""
    return " ".join("".join(each if each.isprintable() else " " for each in _status(state, now)).split())


def _status(state: ClusterState, now: float) -> str:
    children = [child for slot in state.slots for child in slot.children()]  # with replacements and those that leave
    busy = sum(child.beat.busy for child in children)
    if state.is_stopping:
        return f"stopping, at most {_span(state.seconds_left(now))} more: {len(children)} workers left, {busy} busy"
    if not state.slots:
        return "the application is being imported"
    ready = sum(slot.state.is_serving for slot in state.slots)
    parts = [f"{ready} of {len(state.slots)} slots ready, {busy} busy"]
    if state.quiet:
        left = state.quiet.remaining(now)
        parts.append(f"quiet for {_span(left)} more" if left is not None else "quiet without an end")
    if state.roll is not None and state.roll.is_under_way:
        parts.append(f"rolling restart: {state.roll.done} of {state.roll.of}")
    waiting = next((slot for slot in state.slots if not slot.state.is_serving), None)
    if waiting is not None:
        why = f": {waiting.child.waits_for}" if waiting.child is not None and waiting.child.waits_for else ""
        parts.append(f"slot {waiting.number} is in {waiting.state}{why}")
    if state.restart_needed:
        parts.append(f"needs a restart: {state.restart_needed}")
    return ", ".join(parts)


def _span(seconds: float) -> str:
    return f"{ceil(seconds / 60)} min" if seconds >= MINUTES_ABOVE_SECONDS else f"{ceil(seconds)} s"


def unknown_limit(platform_timeout: float, environ: Mapping[str, str]) -> str | None:
    """Return a warning if a platform has a time limit for a stop that no setting names, else None.  Pure.

    config_checks.check compares a known limit with the other settings.
    """
    places = {"NOTIFY_SOCKET": "TimeoutStopSec", "KUBERNETES_SERVICE_HOST": "terminationGracePeriodSeconds"}
    for variable, limit in places.items():
        if environ.get(variable) and not platform_timeout:
            return (
                f"{limit} is not known here, so nobody checks that a stop fits into it; "
                "set KIQ_STOP_PLATFORM_TIMEOUT to it"
            )
    return None
