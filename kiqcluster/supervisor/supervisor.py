"""Supervisor: keeps a worker process in every slot.

Runs in: the only thread of the process.
1. open       signals, pidfile, listeners, embedded server: steps that can fail come first
2. loop       select → signals, frames, HTTP; then reap, deadlines, spawn, replace
3. deaths     a cluster that cannot boot gives up; --fail-fast ends it at any death
4. close      after the last process: helpers, listeners, pidfile

processes.py has the processes, configuration.py and rolling_restart.py their code and settings, order_handler.py the
orders by signals, the control socket and kiqctl.
Never: talks to Redis, imports the application (but for --preload), starts a thread, waits for a child.
"""

from __future__ import annotations

import gc
import os
import secrets
import selectors
import socket
from collections.abc import Callable, MutableMapping, Sequence
from math import inf
from random import Random

from kiqcluster.application import loading
from kiqcluster.errors import ApplicationError, ExitCode, KiqError, UsageError
from kiqcluster.ipc.operating_system import name_process
from kiqcluster.ipc.site_hooks import foreign_threads
from kiqcluster.process.clock import RunningClock, SystemClock
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.sidekiq.queue_groups import Group
from kiqcluster.supervisor.catalogue import CatalogueQuery
from kiqcluster.supervisor.cluster import respawn
from kiqcluster.supervisor.cluster.job_timeouts import JobTimeouts
from kiqcluster.supervisor.cluster.process_observer import ProcessObserver
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.configuration import ClusterConfiguration, ReadConfig
from kiqcluster.supervisor.fork import reap_adopted
from kiqcluster.supervisor.helpers.helper_processes import HelperProcesses
from kiqcluster.supervisor.http.endpoints import Endpoints
from kiqcluster.supervisor.metrics.page import ClusterMetrics
from kiqcluster.supervisor.order_handler import OrderHandler
from kiqcluster.supervisor.pidfile import Pidfile
from kiqcluster.supervisor.processes import ProcessManager
from kiqcluster.supervisor.publisher import Publisher
from kiqcluster.supervisor.release_paths import ReleasePaths
from kiqcluster.supervisor.rolling_restart import RollingRestart
from kiqcluster.supervisor.signals import SignalInbox
from kiqcluster.supervisor.spawner import Spawner, SpawnSpec
from kiqcluster.supervisor.systemd import SystemdNotifier, unknown_limit

__all__ = ["Supervisor"]

DRAIN_CONFIRM_SECONDS = 2.5  # for which all queues must be empty before --drain ends: two checks of every worker
MAX_SLEEP_SECONDS = 1.0  # of the loop: deadlines are checked after that


class Supervisor(ProcessObserver):
    """run_child: runs a worker in a forked process and returns its exit code (worker.child, handed over by the cli).

    environ: has systemd's variables, of which those for the supervisor alone are removed.
    read_config: see ClusterConfiguration.
    """

    def __init__(
        self,
        config: Config,
        groups: Sequence[Group],
        run_child: Callable[[SpawnSpec], int],
        events: Events,
        environ: MutableMapping[str, str],
        read_config: ReadConfig | None = None,
    ) -> None:
        self._config = config  # of the start; a reload changes self._processes.config
        self._events = events
        self._clock = RunningClock(MAX_SLEEP_SECONDS)
        self._selector = selectors.DefaultSelector()
        self._inbox = SignalInbox()
        self._unknown_limit = unknown_limit(config.stop_platform_timeout, environ)
        self._notifier = SystemdNotifier(environ, SystemClock(), self._clock)
        self._pidfile = Pidfile(config.pidfile) if config.pidfile else None
        self._endpoints: Endpoints | None = None
        self._helpers = HelperProcesses(self._selector, self._close_inherited, events, Random())
        self._exit_code = ExitCode.STOPPED
        self._name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(6)}"
        self.state = ClusterState(self._clock.monotonic(), self._clock.now())
        self._metrics = ClusterMetrics(self.state, self._clock, self._events)
        self._releases = ReleasePaths(config.known_directory())
        self._query = CatalogueQuery(
            config.known_directory(), self._selector, self._clock, self._close_inherited, self._helpers.unreaped.add
        )
        self._processes = self._make_processes(run_child)
        self._publisher = Publisher(self._name, self.state, self._processes, self._clock)
        self._configuration = ClusterConfiguration(
            config, groups, self.state, self._processes, self._releases, self._query, read_config, self._cannot_start,
            events, self._clock,
        )  # fmt: skip
        self._rolling_restart = RollingRestart(
            self._configuration, self._processes, self._releases, self._query, self.state, events, self._clock
        )
        self._orders = OrderHandler(
            self.state, self._processes, self._configuration, self._rolling_restart, self._publisher, events,
            self._clock,
        )  # fmt: skip
        self._job_timeouts = JobTimeouts(
            lambda: self._processes.config, self._processes.ask_to_stop, self._processes.end_by_kill, events,
            self._clock,
        )  # fmt: skip
        # A roll hears of a death before it can end the cluster.
        self._processes.observers += [self._rolling_restart, self._orders, self]

    def _make_processes(self, run_child: Callable[[SpawnSpec], int]) -> ProcessManager:
        rng = Random()
        spawner = Spawner(
            run_child,
            self._close_in_worker,
            lambda: self._rolling_restart.enter_release(),
            self._events,
            self._clock,
            rng,
        )
        return ProcessManager(
            self._config, self.state, self._metrics, spawner, self._selector, self._events, self._clock, rng
        )

    def run(self) -> int:
        """Run until stopped; return the exit code.  Raises KiqError for what is refused at the start."""
        name_process("kiqcluster")
        try:
            self._try_to_open()
            while not self._is_over():
                self._run_once()
        finally:
            self._close()
        if self.state.killed_at_stop:
            self._exit_code = self._exit_code or ExitCode.KILLED_AT_STOP
        stranded = [identity for slot in self.state.slots for identity in slot.orphans]
        if stranded:
            self._events.emit("cluster_stranded", identities=", ".join(stranded))
            self._exit_code = self._exit_code or ExitCode.UNEXPECTED
        self._events.emit("cluster_stopped", code=int(self._exit_code))
        return self._exit_code

    # 1. open

    def _try_to_open(self) -> None:
        try:
            self._open()
        except OSError as error:  # no descriptor, process or memory is left
            raise KiqError(
                f"the cluster cannot start ({error}); look at the limits of the unit or container"
            ) from error

    def _open(self) -> None:
        self._refuse_threads()
        self._inbox.install()  # before the pidfile tells others whom to signal
        self._selector.register(self._inbox.fileno(), selectors.EVENT_READ, self._on_signals)
        if self._pidfile is not None:
            self._pidfile.acquire()
        self._endpoints = self._open_endpoints()
        if self._config.embedded is not None:
            self._helpers.start_embedded_server(self._config.embedded)
        if self._unknown_limit is not None:
            self._events.emit("limit_unknown", problem=self._unknown_limit)
        if self._config.preload:
            self._preload()
        # No collection looks at what is there by now, which would hold up the loop for tens of milliseconds, or touches
        # it, which would copy what workers share with us.
        gc.freeze()
        self._configuration.start()
        if self._config.watch:
            self._helpers.start_watcher(self._config.known_directory(), self._on_changed_file)

    def _refuse_threads(self) -> None:
        """Raise UsageError if there are threads by now: a fork copies their locks, and a worker could wait for ever."""
        if threads := foreign_threads():
            raise UsageError(
                f"nothing was started: {len(threads)} threads run in this process before its workers are forked: "
                f"{', '.join(threads)}; workers could hang on what they hold. Start the command kiqcluster itself, not "
                "from a program that has threads; start threads in a startup handler of the application"
            )

    def _open_endpoints(self) -> Endpoints:
        probes = Endpoints(
            self.state,
            self._name,
            lambda: self._processes.config.health_ready_quorum,
            self._metrics,
            self._orders.execute,
            self._selector,
            self._clock,
            self._events,
        )
        probes.listen(self._config.listen)
        if path := self._config.known_control() or self._config.default_control():
            is_there = probes.open_control_socket(path, is_required=self._config.control is not None)
            self.state.control = path if is_there else ""
        return probes

    def _preload(self) -> None:
        """Import the application here, so that workers share its memory.  Raises ApplicationError."""
        loading.load(self._config.require, self._releases.enter_newest(), self._config.known_directory())
        self._releases.preloaded()
        self._inbox.install()  # again: the application may have set handlers of its own
        if threads := foreign_threads():
            raise ApplicationError(
                f"--preload cannot be used: the application starts threads when it is imported: {', '.join(threads)}; "
                "they do not survive a fork; start them in a startup handler, or leave --preload out"
            )

    def _close_inherited(self) -> None:
        """Close all descriptors of the supervisor in a child: it has only what it is given."""
        self._close_own()
        self._helpers.close_in_child()

    def _close_in_worker(self) -> None:
        """Do the same in a worker, which is given the write end of the pipe to the guardian."""
        self._close_own()
        self._helpers.close_in_worker()

    def _close_own(self) -> None:
        self._selector.close()
        self._inbox.close()
        self._notifier.close()
        if self._endpoints is not None:
            self._endpoints.close()
        self._processes.close_in_child()
        self._query.close_in_child()
        if self._pidfile is not None:
            self._pidfile.close_in_child()

    def _on_changed_file(self, path: str) -> None:
        self._events.emit("file_changed", path=path)
        self._orders.on_action("reload" if path.endswith(".toml") else "roll", "a changed file")

    # 2. loop

    def _run_once(self) -> None:
        ready = self._selector.select(self._max_sleep())
        began = self._clock.monotonic()
        self._report_standstill()
        registered = self._selector.get_map()
        for key, _ in ready:
            now = registered.get(key.fd)
            if now is not None and now.fileobj is key.fileobj:  # else what was called before has closed it
                now.data()
        self._reap()
        self._look_at_deadlines()
        if not self.state.is_stopping:
            self._helpers.ensure_running()
            self._conclude_roll()  # before a slot is filled: its end decides on the release
            self._processes.spawn_due()
            self._rolling_restart.turn()
            self._conclude_roll()
            self._drain()
        self._processes.flush()
        self._publisher.publish_if_due()
        self._notify()
        if self._endpoints is not None:
            self._endpoints.advance()
        self._metrics.record_turn(self._clock.monotonic() - began)

    def _conclude_roll(self) -> None:
        self._rolling_restart.conclude()
        self._configuration.continue_reload()

    def _max_sleep(self) -> float:
        """Return the seconds that the loop may sleep."""
        if self._endpoints is not None and self._endpoints.is_busy:
            return 0.0
        longest = MAX_SLEEP_SECONDS / 10 if self.state.is_stopping else MAX_SLEEP_SECONDS
        return max(0.0, min(longest, self._notifier.due_in()))

    def _report_standstill(self) -> None:
        """Say that this process, and the host with it most likely, has stood still: deadlines were moved by that."""
        if seconds := self._clock.take_standstill():
            self._events.emit("supervisor_stood_still", seconds=seconds)

    def _notify(self) -> None:
        is_reloading = self._query.is_asking and bool(self.state.slots) and not self.state.is_rolling
        is_up = self.state.is_up(self._processes.config.health_ready_quorum)
        self._notifier.report(self.state, is_up, reloading=is_reloading)

    def _is_over(self) -> bool:
        return self.state.is_stopping and not self._query.is_asking and self._processes.all_exited

    def _on_signals(self) -> None:
        for action, name in self._inbox.take():
            self._orders.on_action(action, name)

    def _reap(self) -> None:
        self._processes.reap()
        self._helpers.reap()
        if os.getpid() == 1:
            reap_adopted(self._own_pids())

    def _own_pids(self) -> set[int]:
        """Return the processes of this cluster, whose ends others want to know."""
        pids = {child.pid for _, child in self._processes.children()} | self._helpers.pids()
        return pids if self._query.child is None else pids | {self._query.child.pid}

    def _look_at_deadlines(self) -> None:
        self._processes.check_deadlines()
        by = self.state.quiet.by
        if self.state.quiet.expire(self._clock.monotonic()):
            self._events.emit("quiet_expired", by=by)
            self._processes.broadcast("resume")
        if self.state.is_stopping:
            self._query.give_up()
        else:
            self._job_timeouts.check(self._processes.children())
            self._query.check_deadline()

    def _drain(self) -> None:
        """End, if that is asked for, once every worker has seen its queues empty."""
        slots = self.state.slots
        if not self._processes.config.drain or not slots or self.state.is_rolling:
            return
        if any(slot.leaving or slot.replacement is not None or slot.orphans for slot in slots):
            return
        since = max(inf if slot.child is None else slot.child.beat.drained_since for slot in slots)
        if self._clock.monotonic() >= since + DRAIN_CONFIRM_SECONDS:
            self._orders.stop("drained", self._processes.config.stop_timeout)

    # 3. deaths

    def on_death(self, slot: Slot, how: str) -> None:
        why = f"slot {slot.number}: {how}".partition("\n")[0]
        code = None if self.state.was_up else respawn.give_up_code([each.history for each in self.state.slots])
        if code is not None:
            self._events.emit("cluster_gave_up", code=int(code), reason=why)
            self._end_with(code, "boot failure")
        elif self._processes.config.fail_fast:
            self._events.emit("cluster_failed_fast", reason=why)
            self._end_with(ExitCode.FAIL_FAST, "fail fast")

    def _end_with(self, code: ExitCode, why: str) -> None:
        self._exit_code = self._exit_code or code
        self._orders.stop(why, 0.0 if code is not ExitCode.FAIL_FAST else self._processes.config.stop_timeout)

    def _cannot_start(self, error: Exception) -> None:
        self._events.emit("catalogue_failed", error=error)
        self._exit_code = error.exit_code if isinstance(error, KiqError) else ExitCode.UNEXPECTED
        self.state.stop_by = self._clock.monotonic()

    # 4. close

    def _close(self) -> None:
        self._helpers.stop(self._clock, self._wait_a_moment)
        if self._endpoints is not None:
            self._endpoints.close()
            self._endpoints.remove()
        if self._pidfile is not None:
            self._pidfile.release()

    def _wait_a_moment(self) -> None:
        self._selector.select(MAX_SLEEP_SECONDS / 20)
        self._inbox.take()
