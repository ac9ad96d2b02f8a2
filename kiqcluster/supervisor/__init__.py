"""The supervisor: one process, one thread, one select loop.  No Redis, no code of the application.

Processes: supervisor → one child per slot (two while one is replaced), short-lived catalogue children, a watch for
changed files, the guardian of an embedded server.

Read in this order: supervisor (the loop), state and children (what is known), crew (their processes), fork, signals,
respawn (pure), rollout (who is replaced, and when), renewal (roll and reload), releases, reload (pure), quiet (pure).
Then catalogue, outlook, expansion (pure), commands (pure), watch, notify, guardian, pidfile, bulletin; the pages: http,
probes, status, metrics, families, figures, exposition.
"""
