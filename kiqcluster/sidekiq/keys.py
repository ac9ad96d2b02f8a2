"""Every Redis key, its type and who owns it. No other module spells a key.

Sidekiq's keys are spelled as in Sidekiq; ours begin with `kiq:`.  `prefix` is empty unless a shard has one (a hash tag
for Redis Cluster).  A shard with a prefix is not compatible with Ruby, because Sidekiq has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = [
    "FORMAT_VERSION",
    "HEARTBEAT_TTL_SECONDS",
    "MINUTE_TTL_SECONDS",
    "ROLLUP_TTL_SECONDS",
    "STAT_TTL_SECONDS",
    "Keys",
    "utc_date",
]

FORMAT_VERSION = 1  # of the keys below `kiq:`
HEARTBEAT_TTL_SECONDS = 60  # of `<identity>` and `<identity>:work` after their last beat (sidekiq launcher.rb)
STAT_TTL_SECONDS = 157_680_000  # of a day's counters: 5 years (sidekiq launcher.rb)
MINUTE_TTL_SECONDS = 28_800  # of a minute's executions and histograms (sidekiq metrics/tracking.rb)
ROLLUP_TTL_SECONDS = 259_200  # of ten minutes' executions (same, since 8.0)


def utc_date(now: float) -> str:
    """Return the UTC date of an epoch second as YYYY-MM-DD, as in the keys of a day's counters."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one shard."""

    prefix: str = ""

    def shared(self) -> list[str]:
        """Return all keys that there are once: those that belong to no queue, process or job."""
        return [getattr(self, name) for name, each in vars(Keys).items() if isinstance(each, property)]

    # Sidekiq's

    @property
    def queues(self) -> str:
        """set: queue names ever pushed to."""
        return f"{self.prefix}queues"

    def queue(self, name: str) -> str:
        """list: payloads; pushed at the head (left), fetched at the tail (right)."""
        return f"{self.prefix}queue:{name}"

    @property
    def schedule(self) -> str:
        """zset: payloads by the epoch second at which they are due."""
        return f"{self.prefix}schedule"

    @property
    def retry(self) -> str:
        """zset: failed payloads by the epoch second of their next attempt."""
        return f"{self.prefix}retry"

    @property
    def dead(self) -> str:
        """zset: buried payloads by time of death."""
        return f"{self.prefix}dead"

    @property
    def paused(self) -> str:
        """set: names of paused queues (Sidekiq Pro's; OSS 8.1 shows it)."""
        return f"{self.prefix}paused"

    @property
    def processes(self) -> str:
        """set: identities of live processes, Ruby's and ours."""
        return f"{self.prefix}processes"

    @property
    def process_cleanup(self) -> str:
        """string: guard of the pruning of `processes`, 60 s."""
        return f"{self.prefix}process_cleanup"

    @property
    def leader(self) -> str:
        """string: identity of the leader among the processes of Sidekiq Enterprise."""
        return f"{self.prefix}dear-leader"

    def process(self, identity: str) -> str:
        """hash: one process' heartbeat, 60 s."""
        return f"{self.prefix}{identity}"

    def work(self, identity: str) -> str:
        """hash: tid → running job, 60 s; read by Sidekiq ≥ 6.4.2."""
        return f"{self.prefix}{identity}:work"

    def workers(self, identity: str) -> str:
        """hash: the same under the name that Sidekiq ≤ 6.4.1 reads."""
        return f"{self.prefix}{identity}:workers"

    def signals(self, identity: str) -> str:
        """list: TSTP, TERM or TTIN, pushed by Ruby's web page and API."""
        return f"{self.prefix}{identity}-signals"

    @property
    def processed(self) -> str:
        """string: jobs ever run."""
        return f"{self.prefix}stat:processed"

    @property
    def failed(self) -> str:
        """string: jobs ever failed."""
        return f"{self.prefix}stat:failed"

    def processed_on(self, date: str) -> str:
        """string: jobs run on a UTC date (YYYY-MM-DD)."""
        return f"{self.prefix}stat:processed:{date}"

    def failed_on(self, date: str) -> str:
        """string: jobs failed on a UTC date (YYYY-MM-DD)."""
        return f"{self.prefix}stat:failed:{date}"

    def iteration(self, jid: str) -> str:
        """hash: state of an iterable job, 30 days: `ex`, `c`, `rt`, `cancelled`; Sidekiq ≥ 7.3 and ours."""
        return f"{self.prefix}it-{jid}"

    def deploys(self, day: str) -> str:
        """hash: minute of a deploy (ISO 8601) → its label, 90 days; drawn by Sidekiq ≥ 7.  day: YYYYMMDD, UTC."""
        return f"{self.prefix}{day}-marks"

    def deploy_lock(self, label: str) -> str:
        """string: guard of a label, so that a deploy announced by many processes is marked once, 60 s."""
        return f"{self.prefix}deploylock-{label}"

    # Sidekiq's executions; at: UTC.  Sidekiq 7 and 8 spell the keys differently; methods without a number are for 8.

    def executions(self, at: datetime) -> str:
        """hash: `<class>|p` runs, `|f` failures, `|ms` of those that succeeded, of a minute; 8 h, Sidekiq 8."""
        return f"{self.prefix}j|{at:%y%m%d}|{at.hour}:{at.minute:02d}"

    def executions_7(self, at: datetime) -> str:
        """hash: the same under the name that Sidekiq 7 reads."""
        return f"{self.prefix}j|{at:%Y%m%d}|{at.hour}:{at.minute}"

    def executions_rollup(self, at: datetime) -> str:
        """hash: the same of ten minutes; 3 days, Sidekiq 8."""
        return f"{self.prefix}j|{at:%y%m%d}|{at.hour}:{at.minute // 10}"

    def histogram(self, name: str, at: datetime) -> str:
        """string: bitfield u16, how many runs of a class fell into each bucket in a minute; 8 h, Sidekiq 8."""
        return f"{self.prefix}h|{name}-{at.day}-{at.hour}:{at.minute}"

    def histogram_7(self, name: str, at: datetime) -> str:
        """string: the same under the name that Sidekiq 7 reads."""
        return f"{self.prefix}{name}-{at:%d-%H}:{at.minute}"

    def cron_jobs(self, namespace: str = "") -> str:
        """set: keys of the records of sidekiq-cron, hashes; "" for those of its releases before 2."""
        return f"{self.prefix}cron_jobs:{namespace}" if namespace else f"{self.prefix}cron_jobs"

    # ours

    @property
    def members(self) -> str:
        """hash: identity → `epoch boot-id pid-namespace pid create-time`; members may reserve (rule R1)."""
        return f"{self.prefix}kiq:members"

    @property
    def beats(self) -> str:
        """zset: identity by the server's time of its last beat, milliseconds."""
        return f"{self.prefix}kiq:beats"

    @property
    def audit(self) -> str:
        """string: progress of the search for members without a score (beat.lua)."""
        return f"{self.prefix}kiq:audit"

    @property
    def watch(self) -> str:
        """hash: silence after which members are recovered, ms → since when beats have arrived (beat.lua)."""
        return f"{self.prefix}kiq:watch"

    @property
    def polls(self) -> str:
        """hash: duty of the fleet → when somebody has begun it last, server's time, ms (claim_duties.lua)."""
        return f"{self.prefix}kiq:polls"

    @property
    def format(self) -> str:
        """string: the oldest format of the keys below `kiq:` that may still join; absent: any."""
        return f"{self.prefix}kiq:format"

    @property
    def suspects(self) -> str:
        """hash: SHA-1 of a payload → number of processes that died while they ran it, 72 h."""
        return f"{self.prefix}kiq:suspects"

    @property
    def deploy(self) -> str:
        """string: owner of the deploy lock until its lease ends; `kiqctl deploy` holds it."""
        return f"{self.prefix}kiq:deploy"

    def inflight(self, identity: str) -> str:
        """hash: `token:queue` → payload, the units a process holds."""
        return f"{self.prefix}kiq:inflight:{identity}"

    def hand(self, identity: str, field: str) -> str:
        """list: the payload that a push has moved to a waiting process, in flight there as `field` (hand_lists.lua)."""
        return f"{self.prefix}kiq:hand:{identity}:{field}"

    def hands(self, identity: str) -> str:
        """hash: `token:queue` → id of the connection that waits, of the hand lists that a wait may still fill."""
        return f"{self.prefix}kiq:hands:{identity}"

    @property
    def hand_owners(self) -> str:
        """zset: identity of a process with hand lists by when these are looked at next (server's time, ms)."""
        return f"{self.prefix}kiq:hands"

    def held(self, identity: str) -> str:
        """hash: `token:queue` → keys that a unit holds besides its payload, as JSON (holds.lua)."""
        return f"{self.prefix}kiq:held:{identity}"

    def rate(self, name: str) -> str:
        """hash: starts within a rate limit, by its kind (rates.lua); lives as long as the limit needs it."""
        return f"{self.prefix}kiq:rate:{name}"

    @property
    def rates(self) -> str:
        """zset: names of the rate limits that were used, by the time until which their keys are kept."""
        return f"{self.prefix}kiq:rates"

    def running(self, name: str) -> str:
        """set: holders of places in a concurrent limit (places.lua)."""
        return f"{self.prefix}kiq:rate:{name}:running"

    def slots(self, name: str, key: str = "") -> str:
        """set: holders of places in a concurrency limit; the keys beside it are those of parked.lua.

        key: of a limit that counts for each key by itself.
        """
        return f"{self.prefix}kiq:slots:{name}|{key}" if key else f"{self.prefix}kiq:slots:{name}"

    def parked(self, slots: str) -> str:
        """zset: `queue key NUL payload` of the jobs that wait for a place, by the time of their first parking, µs."""
        return f"{slots}:parked"

    def grants(self, slots: str) -> str:
        """zset: SHA-1 of a parked job that was granted a place and sent back to its queue, by when, ms."""
        return f"{slots}:turns"

    def positions(self, slots: str) -> str:
        """hash: the same → its position in the line, the time of its first parking, µs."""
        return f"{slots}:places"

    @property
    def parked_sets(self) -> str:
        """set: keys of the sets of places for which jobs wait, or have waited a short time ago."""
        return f"{self.prefix}kiq:parked"

    @property
    def limits(self) -> str:
        """hash: name → limit that a worker used last; `<name>|override` → `<limit> <until, ms>` by Redis' clock."""
        return f"{self.prefix}kiq:limits"

    @property
    def limit_ends(self) -> str:
        """zset: name of a limit by the epoch second at which its override ends."""
        return f"{self.prefix}kiq:limits:ends"

    @property
    def dropped(self) -> str:
        """zset: payloads of jobs that were dropped by a strike, an expiry or a begin row, by when; 10 000, 7 days."""
        return f"{self.prefix}kiq:dropped"

    @property
    def bulks(self) -> str:
        """zset: ids of bulk actions by when somebody has asked for them; the latest 100."""
        return f"{self.prefix}kiq:bulks"

    def bulk(self, identifier: str) -> str:
        """hash: a bulk action, and how far it is (api/bulk/state.py); 7 days after the last change."""
        return f"{self.prefix}kiq:bulk:{identifier}"

    @property
    def web_secret(self) -> str:
        """string: random bytes of the web pages that have no `secret` of their own (web/security/guard.py)."""
        return f"{self.prefix}kiq:web:secret"

    def result(self, jid: str) -> str:
        """list: the result of a job, JSON, its only element (features/results.py)."""
        return f"{self.prefix}kiq:result:{jid}"

    def history(self, jid: str) -> str:
        """list: the events of a job that keeps its history, JSON, the oldest first (features/history.py)."""
        return f"{self.prefix}kiq:history:{jid}"

    def progress(self, jid: str) -> str:
        """string: how far a running job has come, JSON (features/progress.py); until the run ends."""
        return f"{self.prefix}kiq:progress:{jid}"

    @property
    def strikes(self) -> str:
        """hash: id → JSON of a strike (features/strikes.py); those that have ended go when the next one is added."""
        return f"{self.prefix}kiq:strikes"

    @property
    def cancelled(self) -> str:
        """zset: jid of a cancelled job by when (Redis' clock); 1 000, for a day at most (mark_cancelled.lua)."""
        return f"{self.prefix}kiq:cancelled"

    @property
    def struck(self) -> str:
        """hash: id of a strike → number of jobs that it has deferred or dropped."""
        return f"{self.prefix}kiq:struck"

    @property
    def cron(self) -> str:
        """hash: id of a cron entry → JSON (sidekiq/cron_entries.py)."""
        return f"{self.prefix}kiq:cron"

    @property
    def cron_ticks(self) -> str:
        """zset: id of a cron entry that is enabled by its next tick, epoch seconds."""
        return f"{self.prefix}kiq:cron:ticks"

    @property
    def cron_disabled(self) -> str:
        """set: ids of the cron entries that somebody has disabled."""
        return f"{self.prefix}kiq:cron:disabled"

    @property
    def cron_applications(self) -> str:
        """hash: application → `<digest> <second>` of what it declares, `writing <token>` while it does so."""
        return f"{self.prefix}kiq:cron:applications"

    def cron_history(self, identifier: str) -> str:
        """list: JSON about the latest jobs of a cron entry, newest first."""
        return f"{self.prefix}kiq:cron:history:{identifier}"

    def declared(self, digest: str) -> str:
        """hash: name → what an application declares under it (application/shared_names.py); a day after its use."""
        return f"{self.prefix}kiq:declared:{digest}"

    @property
    def moving(self) -> str:
        """set: names of the shards to which jobs of this one have been moved."""
        return f"{self.prefix}kiq:moving"

    def moving_to(self, shard: str) -> str:
        """list: jobs on their way to a shard (store/shard_moves.py), pushed left, received from the right."""
        return f"{self.prefix}kiq:moving:{shard}"

    def moved(self, run: str) -> str:
        """string: number of the latest job of a run of moves that was received here."""
        return f"{self.prefix}kiq:moved:{run}"

    def lock(self, name: str) -> str:
        """string: jid of the job that holds a lock (features/deduplication.py); `deduplicate_ttl` at most."""
        return f"{self.prefix}kiq:lock:{name}"

    def reschedule(self, name: str) -> str:
        """string: jid of the running job for which a push was refused, if it is to run once more; `deduplicate_ttl`."""
        return f"{self.prefix}kiq:reschedule:{name}"

    @property
    def deduplicated(self) -> str:
        """hash: name of a job → number of its pushes that a lock refused."""
        return f"{self.prefix}kiq:deduplicated"

    @property
    def batches(self) -> str:
        """zset: ids of batches by the time of their creation; the youngest 10 000."""
        return f"{self.prefix}kiq:batches"

    def batch(self, identifier: str) -> str:
        """hash: a batch, with the status of each of its jobs (batches.lua); `ttl`, `kept` of Batch.create."""
        return f"{self.prefix}kiq:batch:{identifier}"

    def batch_ended(self, identifier: str) -> str:
        """zset: jids of the jobs of a batch that have failed by when, epoch seconds; as long as the batch."""
        return f"{self.prefix}kiq:batch:{identifier}:ended"

    def batch_children(self, identifier: str) -> str:
        """set: ids of the batches whose parent this one is; as long as the batch."""
        return f"{self.prefix}kiq:batch:{identifier}:children"

    @property
    def batches_cancelled(self) -> str:
        """zset: ids of cancelled batches that are not complete, by when; the latest 1 000, for a day (batches.lua)."""
        return f"{self.prefix}kiq:batches:cancelled"

    @property
    def batches_changed(self) -> str:
        """zset: ids of batches with a history that have changed since they were copied, by when, microseconds."""
        return f"{self.prefix}kiq:batches:changed"

    def batch_changed(self, identifier: str) -> str:
        """set: jids of the jobs of such a batch that have changed; as long as the batch."""
        return f"{self.prefix}kiq:batch:{identifier}:changed"

    def control(self, identity: str) -> str:
        """list: control messages (process_registry.py) for a process or, through it, for its supervisor; 60 s."""
        return f"{self.prefix}kiq:control:{identity}"

    def stacks(self, identity: str) -> str:
        """string: stacks of the threads of a process, JSON (control/stacks.py); 10 min after a dump."""
        return f"{self.prefix}kiq:stacks:{identity}"

    def executions_written(self, identity: str) -> str:
        """string: number of the latest batch of executions that a process has written, 1 h."""
        return f"{self.prefix}kiq:executions:{identity}"

    def own_executions(self, at: datetime) -> str:
        """hash: our own share of a minute, which we add to the keys of both Sidekiq 7 and Sidekiq 8; 8 h.

        `<class>|p`, `|f` and `|ms` as in theirs, `<class>|3` for the fourth bucket of the histogram.
        """
        return f"{self.prefix}kiq:executed:{at:%y%m%d}:{at.hour}:{at.minute:02d}"

    def probe(self, identity: str) -> str:
        """string: a booting worker tries the commands that it needs on it, 10 s."""
        return f"{self.prefix}kiq:probe:{identity}"

    def wake(self, queue: str) -> str:
        """list: payloads that woke an idle process; belongs to the queue, never to a process (R6)."""
        return f"{self.prefix}kiq:wake:{queue}"
