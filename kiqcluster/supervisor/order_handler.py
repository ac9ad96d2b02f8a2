"""OrderHandler: performs quiet, resume, roll, reload, stop and the other orders to the cluster.

Runs in: the supervisor's loop.  An order comes
1. by a signal                      `on_action`; a refusal is logged
2. over the control socket          `execute`; the caller gets the refusal
3. through Redis and a child        `on_control`; the publisher answers
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping

from kiqcluster.control.orders import BY_SIGNAL, AlreadyLogged, Order, parse_order
from kiqcluster.errors import UsageError
from kiqcluster.process.clock import Clock
from kiqcluster.process.config import STOP_GRACE_SECONDS
from kiqcluster.process.events import Events
from kiqcluster.supervisor.cluster.process_observer import ProcessObserver
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.configuration import ClusterConfiguration
from kiqcluster.supervisor.processes import ProcessManager
from kiqcluster.supervisor.publisher import Publisher
from kiqcluster.supervisor.rolling_restart import RollingRestart

__all__ = ["OrderHandler"]

RESUME_COMMAND = "`kiqctl resume`"


class OrderHandler(ProcessObserver):
    """Performs orders on the processes, the configuration and the rolling restart."""

    def __init__(
        self,
        state: ClusterState,
        processes: ProcessManager,
        configuration: ClusterConfiguration,
        rolling_restart: RollingRestart,
        publisher: Publisher,
        events: Events,
        clock: Clock,
    ) -> None:
        self._state = state
        self._processes = processes
        self._configuration = configuration
        self._rolling_restart = rolling_restart
        self._publisher = publisher
        self._events = events
        self._clock = clock
        self._had_terminal = sys.stdin is not None and sys.stdin.isatty()

    def on_action(self, action: str, name: str) -> None:
        """Do what a signal asks for.  action: see signals.py.  name: of the signal."""
        match action:
            case "stop" if name == "SIGINT" and self._had_terminal and self._state.is_stopping:
                self.stop(name, 0.0)  # Ctrl-C for the second time: whoever sits there does not want to wait
            case "stop":
                self.stop(name, self._processes.config.stop_timeout)
            case "stop_now":
                self.stop(name, 0.0)
            case "quiet" if name == "SIGTSTP" and self._had_terminal and self._state.quiet:
                # At a terminal no shell can resume the cluster with `fg`: the second Ctrl-Z does it.
                self._resume(BY_SIGNAL, name)
            case "quiet":
                self._quiet(BY_SIGNAL, None, name)
            case "resume":
                self._resume(BY_SIGNAL, name)
            case "dump":
                self._processes.dump()
            case "reload" if self._had_terminal and not os.isatty(0):  # the terminal has been closed
                self.stop(name, self._processes.config.stop_timeout)
            case "reload" | "roll":
                renew = self._configuration.reload if action == "reload" else self._rolling_restart.roll
                self._report_refusal(action, renew(secrets.token_hex(6)))

    def execute(self, message: Mapping[str, object]) -> str | None:
        """Perform an order; return why that is not possible, None if it is accepted.

        See docs/reference/control_messages.md for the words.
        """
        try:
            order = parse_order(message)
        except UsageError as error:
            return str(error)
        return self._execute(order)

    def _execute(self, order: Order) -> str | None:
        if self._state.is_stopping and order.action != "dump":
            return "the cluster is stopping"
        match order.action:
            case "quiet":
                self._quiet(order.by, order.lease, order.by)
                self._rolling_restart.begin_deploy(order.by)
            case "resume" if self._state.quiet.is_of(order.whose):
                self._resume(order.by, order.by)
            case "roll":
                return self._rolling_restart.roll(order.ident or secrets.token_hex(6))
            case "rollback":
                return self._rolling_restart.roll_back(order.ident or secrets.token_hex(6), order.by)
            case "reload":
                return self._configuration.reload(order.ident or secrets.token_hex(6))
            case "stop":
                self.stop(order.by, self._processes.config.stop_timeout)
            case "dump":
                return self._processes.dump(order.pid)
            case "kill":
                return self._processes.kill_job(order.jid, order.by)
        return None

    def _quiet(self, by: str, lease: float | None, name: str) -> None:
        """Stop fetching.  lease: seconds, None for quiet_lease.  name: of the signal, or of the person who asks."""
        if self._state.is_stopping:
            return
        lease = self._processes.config.quiet_lease if lease is None else lease
        self._state.quiet.begin(by, lease, self._clock.monotonic(), self._clock.now())
        self._events.emit(
            "cluster_quiet", signal=name, lease=f"for {lease:g} s" if lease else "until somebody resumes",
            way_out="CONT (or Ctrl-Z again), or `kiqctl resume`," if self._state.quiet.is_by_signal else RESUME_COMMAND,
        )  # fmt: skip
        self._processes.broadcast("quiet")  # also when the quiet is not new: one child may have been resumed alone

    def _resume(self, by: str, name: str) -> None:
        if self._state.is_stopping:
            return
        if self._state.quiet.end(by):
            self._events.emit("cluster_resumed", signal=name)
        elif self._state.quiet:
            self._report_refusal("resume", f"{self._state.quiet.by} asked for this quiet; {RESUME_COMMAND} ends it")
            return
        self._processes.broadcast("resume")  # also children that a button of a web page has quieted

    def on_control(self, message: Mapping[str, object]) -> None:
        ident = str(message.get("id") or "unnamed")
        if ident in self._publisher.answers and message.get("id"):  # it came by two processes
            return
        refusal = self.execute(message)
        self._publisher.answer(ident, refusal)
        self._report_refusal(str(message.get("action")), refusal)

    def _report_refusal(self, command: str, refusal: str | None) -> None:
        if refusal is not None and not isinstance(refusal, AlreadyLogged):
            self._events.emit("command_refused", command=command, reason=refusal)

    def stop(self, name: str, seconds: float) -> None:
        """Begin to stop; a second call can only bring the end nearer.  Nothing is respawned from here on."""
        by = self._clock.monotonic() + seconds + STOP_GRACE_SECONDS
        if self._state.stop_by is not None and by >= self._state.stop_by:
            running = sum(len(child.running_jobs.jobs()) for _, child in self._processes.children())
            self._events.emit("cluster_waits", signal=name, running=running)
            return
        self._state.stop_by = by
        self._rolling_restart.abandon()
        self._configuration.abandon()
        self._events.emit("cluster_stopping", signal=name, seconds=seconds)
        self._processes.stop(seconds)
