"""Log wording: the level and the text of every event that is logged.

A text states the fact, its consequence, and the next step.  Events without an entry are not logged.
"""

from __future__ import annotations

import logging

from kiqcluster.words import page

__all__ = ["WORDING"]

# event → level, text with the names of its fields
WORDING: dict[str, tuple[int, str]] = {
    # worker
    "worker_ready": (logging.INFO, "ready; threads: {concurrency}, queues: {queues}"),
    "worker_quiet": (
        logging.INFO,
        "quiet: running jobs finish, no new ones are fetched; reserved units given back: {returned}",
    ),
    "worker_resumed": (logging.INFO, "resumed: fetching again"),
    "worker_stopping": (logging.INFO, "stopping: running jobs: {running}; they have {seconds:g} s to finish"),
    "worker_interrupted": (
        logging.WARNING,
        "out of time: what still runs is put back and will run again: {jids}",
    ),
    "stop_unasked": (
        logging.ERROR,
        "a signal stopped this worker that its supervisor knows nothing of; the jobs that still run may have sent it: "
        "they are put back, and this counts as a death against them: {jids}",
    ),
    "descriptors_lost": (
        logging.ERROR,
        "a job has closed descriptors that are this worker's ({lost}); it finishes what it runs, and another one takes "
        "its place. Look for os.close and os.closerange in your jobs and their libraries",
    ),
    "exit_handlers_overdue": (
        logging.WARNING,
        "exit handlers (atexit) of the application, or the output that they wait to write, were not done within "
        "{seconds:g} s; the process ends without them",
    ),
    "worker_stranded": (
        logging.ERROR,
        "Redis did not answer ({error}): what it held stays in flight under {identity} (units: {units}) and "
        "is given back when a worker starts on this host, or by any other after health.recover_after",
    ),
    "worker_left": (logging.INFO, "stopped"),
    "worker_orphaned": (logging.WARNING, "the supervisor is gone: finishing running jobs, then leaving"),
    "worker_fenced": (
        logging.WARNING,
        "{old} is no longer known in Redis: it was silent for too long and others have recovered its jobs, or Redis "
        "has lost its data; going on as {new}",
    ),
    "redis_lost": (logging.WARNING, "Redis is away ({error}); running jobs go on, outcomes are kept until it is back"),
    "redis_awaited": (logging.WARNING, "waiting for Redis: {error}. REDIS_URL or --redis says where it is"),
    "redis_back": (logging.INFO, "Redis is back after {seconds:.1f} s"),
    "redis_refused": (logging.ERROR, "Redis refused {operation} ({error}); it is tried again"),
    "redis_unsafe": (
        logging.WARNING,
        f"{{problem}}; set {{remedy}}, or jobs can be lost inside Redis ({page('reliability')})",
    ),
    "recovered": (logging.INFO, "recovered from {identity}, {why}; units: {units}"),
    "recovered_nothing": (logging.DEBUG, "{identity}, {why}, held nothing"),
    "dead_set_overflows": (
        logging.WARNING,
        "the dead set is full (dead.max_jobs is {largest}): dead jobs dropped, oldest first: {count}; see why so many "
        "die (kiqctl dead), or raise dead.max_jobs",
    ),
    "clock_skewed": (
        logging.WARNING,
        "the clock of this host is {seconds:.0f} s {direction} Redis': times that it stores are wrong by that, and "
        "what is due goes by Redis' clock where this one is ahead; synchronise the clocks (chronyc tracking)",
    ),
    "ruby_json_doubtful": (
        logging.WARNING,
        "{identity} runs Sidekiq {sidekiq}, whose json writes floats otherwise than ruby_json = {setting} says: its "
        "pages may not find our jobs with such arguments again; set ruby_json to the other form "
        f"({page('reference/settings')})",
    ),
    "ruby_json_undeclared": (
        logging.WARNING,
        "{identity} runs Sidekiq {sidekiq}, which may have either form of floats, and nobody has set ruby_json: its "
        "pages may not find our jobs with such arguments again; on its host, ruby -r json -e 'puts JSON::VERSION' "
        f'says which: set ruby_json to "2.12" for 2.12 and later, else to "2.6" ({page("reference/settings")})',
    ),
    "shards_differ": (
        logging.WARNING,
        "{identity} has other [shards] ({theirs}, here {ours}): jobs may go to a Redis that others do not look at; "
        "give all nodes the same",
    ),
    "routing_differs": (
        logging.WARNING,
        "{identity} has other routing rules ({theirs}) than this process ({ours}): jobs of one class go to different "
        "queues; give all nodes of the application the same rules, then compare with kiqctl routes",
    ),
    "declarations_differ": (
        logging.WARNING,
        "{name} is {declared} in the application {application}, and {theirs} in {other} ({identity}): {consequence}; "
        "give one of them another name, or declare both alike",
    ),
    "queues_changed": (logging.INFO, "listening to {queues}"),
    "no_queues": (logging.WARNING, "{group} matches no queue yet; one thread waits for the first one to appear"),
    "service_crashed": (logging.ERROR, "{service} crashed ({error!r}) and is started again"),
    "control_malformed": (logging.WARNING, "a control message was dropped, for {error}: {raw}"),
    "collector_failed": (
        logging.ERROR,
        "the metrics of {collector} cannot be read ({error}); this is said once, the others are",
    ),
    "log_field_twice": (
        logging.ERROR,
        "lines of jobs have two values for {field}: the one of the event is shown, the one of the job is not; this is "
        "said once",
    ),
    "threads": (logging.INFO, "threads of this process:\n{stacks}"),
    "unknown_signal": (logging.WARNING, "{signal}: a worker does nothing on it; its supervisor does"),
    "web_action": (logging.INFO, "web pages: {user} ({role}, {address}): {action} {target}: {result}"),
    "web_export": (
        logging.INFO,
        "web pages: {user} ({role}, {address}) exported {count} jobs of {page} ({target}): {result}",
    ),
    # jobs
    "job_start": (logging.INFO, "start"),
    "job_done": (logging.INFO, "done in {elapsed:.3f} s"),
    "job_failed": (logging.WARNING, "{outcome}{detail}: {error} (ran {elapsed:.3f} s)"),
    "job_normal_failure": (
        logging.INFO,
        "failed in the sense of its work, so it is not retried: {reason} (ran {elapsed:.3f} s)",
    ),
    "job_dropped": (logging.INFO, "not run, dropped: {reason}"),
    "job_deferred": (logging.INFO, "put off for {seconds:.3f} s: {reason}"),
    "job_parked": (logging.INFO, "not run, parked until {limit} has a place"),
    "job_interrupted": (logging.INFO, "gave way after {elapsed:.3f} s; it runs again"),
    "process_changed": (
        logging.WARNING,
        "the {what} of this process was {before!r} and is {now!r}, for all jobs: one of them, or a library, has "
        "changed it; running: {running}",
    ),
    "event_loop_blocked": (
        logging.WARNING,
        "{name} {jid} blocks the event loop for {seconds:.0f} s: all other async jobs of this process wait; have it "
        "await what it waits for, or call asyncio.to_thread(…)",
    ),
    "job_overdue": (
        logging.WARNING,
        "{name} {jid} has run for {elapsed:.1f} s and goes on, although its timeout is {limit:g} s; check "
        "current_job().timed_out in it, or give it a timeout_hard",
    ),
    # supervisor
    "supervisor_started": (
        logging.INFO,
        "kiqcluster {version} ({environment}), pid {pid}, slots: {slots}, metrics and probes: {listen}, "
        "control socket: {control}",
    ),
    "limit_unknown": (logging.WARNING, "{problem}"),
    "setting_doubtful": (logging.WARNING, "{problem}"),
    "slot_group": (logging.INFO, "slot {slot}: {queues} ({mode}, threads: {concurrency})"),
    "child_started": (logging.DEBUG, "slot {slot}: pid {child} started"),
    "forked_with_threads": (
        logging.WARNING,
        "slot {slot}: pid {child} was forked while threads run in the supervisor, which starts none: {threads}; it may "
        "hang on what they hold (health.boot_timeout ends it then); restart the supervisor without them",
    ),
    "metric_refused": (
        logging.ERROR,
        "the metric {metric} of a worker is not shown, for names that begin with kiqcluster_ are the supervisor's; "
        "rename it (this is said once)",
    ),
    "child_behind": (
        logging.WARNING,
        "slot {slot}: pid {child} is started from {release}, which booted last; the release to be is {wanted}",
    ),
    "release_gone": (
        logging.ERROR,
        "slot {slot}: the release {gone}, which is in use, is gone; from now on processes are started from {release}",
    ),
    "release_moved": (
        logging.WARNING,
        "rolling restart {id}: all workers run {release}; the link leads to {wanted} by now: roll again for that",
    ),
    "child_ready": (logging.INFO, "slot {slot}: pid {child} ready after {seconds:.1f} s"),
    "child_died": (logging.WARNING, "slot {slot}: pid {child} {death}{report}"),
    "child_left": (logging.INFO, "slot {slot}: pid {child} left"),
    "child_overdue": (logging.ERROR, "slot {slot}: pid {child} {reason}; it is killed and replaced\n{stacks}"),
    "child_unresponsive": (
        logging.WARNING,
        "slot {slot}: pid {child} has said nothing for {seconds:.1f} s, {report}; a job may hold the interpreter",
    ),
    "job_timed_out": (
        logging.ERROR,
        "slot {slot}: pid {child} has jobs that run for longer than their timeout_hard, and is replaced; {report}",
    ),
    "child_responds": (logging.WARNING, "slot {slot}: pid {child} responds again"),
    "child_stacks": (logging.WARNING, "slot {slot}: the threads of pid {child}:\n{stacks}"),
    "supervisor_stood_still": (
        logging.WARNING,
        "the supervisor stood still for {seconds:.1f} s, and most likely the host; all deadlines are later by that",
    ),
    "child_backoff": (logging.WARNING, "slot {slot}: next try in {seconds:.1f} s, after {why}"),
    "fork_failed": (logging.ERROR, "slot {slot}: fork failed ({error}); tried again"),
    "cluster_quiet": (logging.INFO, "{signal}: quiet {lease}; {way_out} ends it"),
    "quiet_expired": (logging.WARNING, "nobody ended the quiet of {by} before its lease did: fetching again"),
    "child_quiet_expired": (
        logging.WARNING,
        "slot {slot}: nobody ended the quiet of pid {child} before its lease did: fetching again",
    ),
    "command_refused": (logging.WARNING, "{command}: not done, {reason}"),
    "file_changed": (logging.INFO, "{path} has changed"),
    "roll_started": (logging.INFO, "rolling restart {id} begins, one slot at a time; slots: {slots}"),
    "roll_done": (logging.INFO, "rolling restart {id} is done; slots renewed: {slots}"),
    "roll_waits": (
        logging.WARNING,
        "rolling restart {id} waits until the shard {shards} is back; it has done {done} of {slots} slots",
    ),
    "roll_failed": (
        logging.ERROR,
        "rolling restart {id} stopped after {done} of {slots} slots; the others stay as they are: {error}",
    ),
    "roll_superseded": (
        logging.INFO,
        "rolling restart {id} gives way to another one, {by}, after {done} of {slots} slots",
    ),
    "child_replaced": (logging.INFO, "slot {slot}: pid {child} takes over ({reason})"),
    "child_outgrown": (logging.WARNING, "slot {slot}: pid {child} uses {size}, more than {limit}"),
    "recycle_failed": (logging.ERROR, "slot {slot}: not replaced ({reason}), the new process failed: {error}"),
    "reloaded": (
        logging.INFO,
        "reloaded; slots kept: {kept}, added: {added}, removed: {removed}{resized}{restart}{roll}",
    ),
    "reload_superseded": (logging.INFO, "the reload under way is given up: {reason}"),
    "reload_needed": (
        logging.WARNING,
        "the configuration of this release has other {settings}, which a rolling restart leaves alone: reload (HUP)",
    ),
    "reload_failed": (logging.ERROR, "not reloaded, everything stays as it is: {error}"),
    "restart_needed": (logging.WARNING, "{reason}; that takes a restart of the supervisor"),
    "cluster_failed_fast": (logging.ERROR, "--fail-fast: {reason}"),
    "cluster_resumed": (logging.INFO, "{signal}: resumed"),
    "cluster_stopping": (logging.INFO, "{signal}: stopping; up to {seconds:g} s for running jobs"),
    "cluster_waits": (logging.INFO, "{signal}: already stopping; jobs that still run: {running}; QUIT stops at once"),
    "selector_unmatched": (logging.WARNING, "slot {slot}: no registered job has {values}; {hint}"),
    "routing_rule_unused": (logging.WARNING, "routing rule {number} ({selector}) routes no registered job; {hint}"),
    "cron_entries_removed": (
        logging.WARNING,
        "cron: removed {names}, which {application} does not declare any more; if another application of this name "
        "does, set cron_application in each",
    ),
    "cron_ticks_brought_back": (
        logging.WARNING,
        "cron: {names} awaited ticks that are too far away, as the clock of Redis was ahead; they await their next "
        "ticks now; see why that clock was wrong",
    ),
    "cron_entries_restored": (
        logging.WARNING,
        "cron: {names} of {application} were missing in Redis, or were changed there, and are written again; see what "
        "removes keys (maxmemory-policy has to be noeviction)",
    ),
    "cron_entries_superseded": (
        logging.WARNING,
        "cron: another process of {application} has declared other entries {seconds:.0f} s ago, and this one, which "
        "declares {names}, still runs; if no deploy is under way, two applications have this name: set "
        "cron_application in each",
    ),
    "cron_entries_taken_over": (
        logging.WARNING,
        "cron: {names} belong to {application} now; of {others}, which had them, no process runs",
    ),
    "cron_queue_unserved": (
        logging.WARNING,
        "cron: no process fetches from the queue {queue}, where the jobs of {names} of {application} go, so they wait "
        "there; name it in a group of a cluster, or give the entry another queue",
    ),
    "cron_entry_held": (logging.ERROR, "{refusal}; until then it enqueues nothing"),
    "cron_entries_written": (logging.INFO, "cron: {entries} entries are declared, {removed} removed"),
    "queue_unknown": (logging.WARNING, "slot {slot}: no registered job goes to {queues}; {hint}"),
    "cluster_gave_up": (logging.ERROR, "no slot ever became ready; exit {code} ({reason})"),
    "cluster_stranded": (
        logging.ERROR,
        "what {identities} held is still in flight in Redis; it is given back when a worker starts on this host, "
        "or by any other after health.recover_after",
    ),
    "cluster_stopped": (logging.INFO, "stopped, exit {code}"),
    "stop_overdue": (logging.ERROR, "slot {slot}: pid {child} did not leave in time and is killed"),
    "catalogue_failed": (logging.ERROR, "nothing was started: {error}"),
    "control_off": (logging.WARNING, "no control socket at {path}: {error}; kiqctl works through Redis only"),
    "page_failed": (logging.ERROR, "{path} failed ({error}) and answers 500; this is said once, the cluster goes on"),
    "embedded_started": (
        logging.INFO,
        "embedded server in {directory} (pid {pid}), for other commands REDIS_URL=embedded:{directory}; "
        "for development, not for production",
    ),
    "embedded_died": (logging.ERROR, "embedded server {reason}; started again in {seconds:.1f} s; why is in {log}"),
    "embedded_failed": (logging.ERROR, "embedded server could not be started ({reason}); its log is {log}"),
    "guardian_died": (
        logging.ERROR,
        "guardian of the embedded server {reason}; the next one starts in {seconds:.1f} s; the server's log is {log}",
    ),
}
