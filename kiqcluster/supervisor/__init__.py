"""The supervisor: one process, one thread, one select loop.  It uses no Redis and no code of the application.

Processes: the supervisor; one child per slot, two while one is replaced; short-lived catalogue children; a watcher for
changed files; a guardian that runs the embedded server.

Read in this order: supervisor (the loop), cluster/ (state, and decisions about it), processes (promote, reap), spawner,
fork, signals, configuration (start and reload), rolling_restart, release_paths, order_handler.  Then catalogue,
preflight, systemd, pidfile, publisher.  The pages are in http/ and metrics/, processes that are no workers in helpers/.
"""
