"""The supervisor: one process, one thread, one select loop.  No Redis, no code of the application.

Processes: supervisor → one child per slot (two while one is replaced), short-lived catalogue children, a watch for
changed files, the guardian of an embedded server.

Read in this order: supervisor (the loop), cluster/ (what is known, and decisions about it), processes (spawn, hear,
kill, reap), fork, signals, rolling_restart (who is replaced, and when), renewal (roll and reload), release_paths,
reload (pure).  Then catalogue, preflight, watch, systemd, embedded_server, pidfile, publisher; pages: http/, metrics/.
"""
