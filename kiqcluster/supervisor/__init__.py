"""The supervisor: one process, one thread, one select loop.  No Redis, no code of the application.

Processes: supervisor → one child per slot, a short-lived catalogue child, the guardian of an embedded server.

Read in this order: supervisor (the loop), children (what is known of each slot), fork, signals, respawn (pure),
expansion (pure).  Then catalogue, metrics, probes, http, guardian, pidfile.
"""
