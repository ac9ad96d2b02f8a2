"""Notify: what systemd hears of the cluster, one datagram at a time, on the socket that NOTIFY_SOCKET names.

Runs in: the supervisor's loop, once a turn.  What it cannot send now it sends at a later turn; nothing waits.
1. READY       every slot that has to be is ready; again when a reload or a rolling restart is over
2. RELOADING   one of these is under way, with the time, which Type=notify-reload compares with its request's
3. STOPPING    and EXTEND_TIMEOUT_USEC while jobs are waited for, as while slots boot: our deadlines count, not its
4. STATUS      one line for `systemctl status`
5. WATCHDOG    at half of its interval.  The loop itself says it, so a loop that hangs is restarted

Without NOTIFY_SOCKET nothing is sent.  Source of the words: sd_notify(3) and systemd.service(5) of systemd 252-258.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from math import ceil, inf

from kiqcluster.clock import Clock
from kiqcluster.supervisor.cluster.state import ClusterState

__all__ = ["SystemdNotifier", "status_line", "unknown_limit"]

EXTENSION_SECONDS = 15.0  # seconds by which a deadline of systemd's is moved, counted from each word of ours
EXTENSION_INTERVAL_SECONDS = 5.0
STATUS_INTERVAL_SECONDS = 1.0  # seconds between two changes of the status line that come with no other news
RETRY_SECONDS = 1.0  # seconds that the loop may sleep after systemd would not take a word
MINUTES_ABOVE_SECONDS = 120.0  # seconds from which a span is shown in minutes
STARTING, RUNNING, RELOADING, STOPPING = "starting", "running", "reloading", "stopping"
WORDS = {RUNNING: "READY=1", STOPPING: "STOPPING=1"}  # RELOADING carries the time as well


class SystemdNotifier:
    """Tells systemd what has changed.  environ: its variables are taken out, so that no child believes them its own.

    clock: systemd's own, which runs on while this process stands still.  running: the one by which the state's
    deadlines go; None for the same.
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
        self._ended = 0  # reloads and rolling restarts that systemd has been told of
        self._status = ""
        self._is_status_late = False
        self._status_due = self._extension_due = self._watchdog_due = self._retry_due = -inf

    def report(self, state: ClusterState, ready: bool, *, reloading: bool = False) -> None:
        """Send what has changed since the last turn, and what is due.

        ready: whether as many slots are as the cluster needs.  reloading: whether a reload (HUP) is under way.
        """
        if self._socket is None:
            return
        now = self._clock.monotonic()
        self._tell_phase(state, _phase(state, self._phase, ready=ready, reloading=reloading), now)
        self._tell_status(self._status_line(state), now)
        self._extend(state, now)
        if self._watchdog_pause and now >= self._watchdog_due and self._send("WATCHDOG=1"):
            self._watchdog_due = now + self._watchdog_pause

    def next_due(self) -> float:
        """Return the monotonic second by which report() wants to be called, whatever happens; infinity for never."""
        if self._socket is None:
            return inf
        due = min(
            self._watchdog_due if self._watchdog_pause else inf,
            self._extension_due,
            self._status_due if self._is_status_late else inf,
        )
        return max(due, self._retry_due)

    def due_in(self) -> float:
        """Return the seconds until then."""
        return self.next_due() - self._clock.monotonic()

    def _status_line(self, state: ClusterState) -> str:
        return status_line(state, self._running.monotonic())

    def close(self) -> None:
        """Close the socket; in a child this leaves the supervisor's own alone."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tell_phase(self, state: ClusterState, phase: str, now: float) -> None:
        ended = state.reloads.total() + state.rolls.total()
        if self._phase == phase == RUNNING and ended != self._ended and not self._enter(RELOADING, state, now):
            return
        # One that began and was over within a turn, as with a broken file, ends here: systemd waits for both words.
        if phase != self._phase and not self._enter(phase, state, now):
            return
        self._ended = ended

    def _enter(self, phase: str, state: ClusterState, now: float) -> bool:
        """Say that a phase begins; return whether that could be sent."""
        word = WORDS.get(phase) or f"RELOADING=1\nMONOTONIC_USEC={now * 1e6:.0f}"
        status = self._status_line(state)
        if not self._send(f"{word}\nSTATUS={status}"):
            return False
        self._phase, self._extension_due = phase, now
        self._took_status(status, now)
        return True

    def _tell_status(self, status: str, now: float) -> None:
        self._is_status_late = status != self._status
        if self._is_status_late and now >= self._status_due and self._send(f"STATUS={status}"):
            self._took_status(status, now)

    def _took_status(self, status: str, now: float) -> None:
        self._status, self._status_due, self._is_status_late = status, now + STATUS_INTERVAL_SECONDS, False

    def _extend(self, state: ClusterState, now: float) -> None:
        """Ask for patience, but neither while all is well nor once the time of a stop is over."""
        if self._phase == RUNNING or not state.seconds_left(self._running.monotonic()):
            self._extension_due = inf
        elif now >= self._extension_due and self._send(f"EXTEND_TIMEOUT_USEC={EXTENSION_SECONDS * 1e6:.0f}"):
            self._extension_due = now + EXTENSION_INTERVAL_SECONDS

    def _send(self, message: str) -> bool:
        """Return whether it could be sent; a manager that is busy or gone must not trouble the cluster."""
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
    """Return the address for a name, empty for what is none of ours (vsock: is for virtual machines)."""
    if name.startswith("@"):
        return f"\0{name[1:]}"
    return name if name.startswith("/") else ""


def _watchdog_pause(microseconds: str, pid: str) -> float:
    """Return the seconds between signs of life: half of what systemd grants; 0 when it wants none, or not from us."""
    is_ours = not pid or pid == str(os.getpid())
    return int(microseconds) / 2e6 if is_ours and microseconds.isascii() and microseconds.isdigit() else 0.0


def status_line(state: ClusterState, now: float) -> str:
    """Return what there is to know of the cluster, in one line: names that users choose cannot make it two.  Pure."""
    return " ".join("".join(each if each.isprintable() else " " for each in _status(state, now)).split())


def _status(state: ClusterState, now: float) -> str:
    children = [child for slot in state.slots for child in slot.children()]  # also those that leave or take over
    busy = sum(child.busy for child in children)
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
    """Return a warning when something will kill us at a time that we have not been told, else None.  Pure.

    That a known one leaves room for the stop is checked with the other settings (config.check).
    """
    places = {"NOTIFY_SOCKET": "TimeoutStopSec", "KUBERNETES_SERVICE_HOST": "terminationGracePeriodSeconds"}
    for variable, limit in places.items():
        if environ.get(variable) and not platform_timeout:
            return (
                f"{limit} is not known here, so nobody checks that a stop fits into it; set KIQ_PLATFORM_TIMEOUT to it"
            )
    return None
