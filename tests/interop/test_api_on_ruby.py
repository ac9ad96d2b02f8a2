"""kiqcluster.api on what Ruby wrote: it reads what Ruby's own API reads, and live Ruby processes go on from there."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from kiqcluster.api import (
    DeadSet,
    History,
    ProcessSet,
    Queue,
    RetrySet,
    ScheduledSet,
    Stats,
    WorkSet,
    summaries,
)
from kiqcluster.errors import UsageError
from kiqcluster.sidekiq.ruby_json import decode
from tests.interop.programs import RubyServer, exact
from tests.interop.values import ALL_KINDS
from tests.kit import wait_until

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("store", "setup", "ruby_server")]

MANY_JOBS = 120
FAR_FUTURE = 4_000_000_000.5  # epoch seconds
SETS = {"ScheduledSet": ScheduledSet, "RetrySet": RetrySet, "DeadSet": DeadSet}
KEYS = {"ScheduledSet": "schedule", "RetrySet": "retry", "DeadSet": "dead"}
AS_RUBY_READS = """
Sidekiq::%s.new.map { |e|
  {id: e.jid, name: e.klass, display_class: e.display_class, args: e.args, display_args: e.display_args, queue: e.queue,
   tags: e.tags, score: e.score, retry_count: e["retry_count"], error_class: e["error_class"],
   error_message: e["error_message"], error_backtrace: e.error_backtrace || [], created_at: e.created_at.to_f,
   enqueued_at: e.enqueued_at&.to_f, failed_at: e["failed_at"], retried_at: e["retried_at"], payload: e.item}
}
"""
FIELDS = ("name", "display_class", "args", "display_args", "queue", "tags", "score", "retry_count", "error_class",
          "error_message", "error_backtrace", "failed_at", "retried_at", "payload")  # fmt: skip
STATS = """
stats = Sidekiq::Stats.new
%w[processed failed scheduled_size retry_size dead_size enqueued processes_size workers_size].to_h { |name|
  [name, stats.public_send(name)]
}
"""


@pytest.fixture
def fragile(stage, ruby_client):
    """Have Ruby fail so many jobs with the arguments n, ALL_KINDS…; return their jids once they are where they end."""

    def fragile(count, retry=True):
        options = {"queue": "ruby", "tags": ["vip", "é"], "backtrace": 3, "retry": retry}
        every = [
            ruby_client.of("Acme::Fragile", "perform_async", number, *ALL_KINDS, set=options) for number in range(count)
        ]
        key = "retry" if retry else "dead"
        wait_until(lambda: stage.jids(key) >= set(every), "the jobs to fail in Ruby", 30)
        return every

    return fragile


@pytest.fixture
def fill(fragile, ruby_client):
    """Have Ruby write so many entries to one of the sets; return their jids."""

    def fill(kind, count):
        if kind == "ScheduledSet":
            return [
                ruby_client(
                    "perform_at", FAR_FUTURE + number, number, *ALL_KINDS, set={"queue": "ruby", "tags": ["vip", "é"]}
                )
                for number in range(count)
            ]
        return fragile(count, retry=0 if kind == "DeadSet" else True)

    return fill


# sets


@pytest.mark.parametrize("kind", SETS)
def test_entries_read_as_ruby_reads_them(kind, ruby, fill):
    fill(kind, 3)

    ours, theirs = list(SETS[kind]()), ruby(AS_RUBY_READS % kind)

    assert [entry.jid for entry in ours] == [each["id"] for each in theirs]
    for entry, each in zip(ours, theirs, strict=True):
        assert {name: exact(getattr(entry, name)) for name in FIELDS} == {name: exact(each[name]) for name in FIELDS}
        assert entry.created_at == pytest.approx(each["created_at"], abs=1e-5)
        assert entry.enqueued_at == (each["enqueued_at"] and pytest.approx(each["enqueued_at"], abs=1e-5))


def test_a_long_set_is_walked_in_rubys_order(ruby, ruby_client):
    ruby_client.push_bulk(
        {"class": "Echo", "args": [[each] for each in range(MANY_JOBS)], "queue": "ruby", "at": FAR_FUTURE}
    )

    assert [entry.jid for entry in ScheduledSet()] == ruby("Sidekiq::ScheduledSet.new.map(&:jid)")
    assert [entry.jid for entry in reversed(ScheduledSet())] == ruby("Sidekiq::ScheduledSet.new.map(&:jid).reverse")
    assert len(ScheduledSet()) == MANY_JOBS


@pytest.mark.parametrize("kind", SETS)
def test_entries_are_found_fetched_and_scanned(kind, fill):
    every = fill(kind, 3)
    found = SETS[kind]().find_job(every[1])

    assert found.jid == every[1]
    assert [entry.jid for entry in SETS[kind]().fetch(found.score, every[1])] == [every[1]]
    assert {entry.jid for entry in SETS[kind]().fetch((found.score - 1e3, found.score + 1e3))} == set(every)
    assert {entry.jid for entry in SETS[kind]().scan("vip")} == set(every)
    assert [entry.jid for entry in SETS[kind]().scan(every[2])] == [every[2]]
    assert list(SETS[kind]().scan("nobody")) == []


@pytest.mark.parametrize("kind", SETS)
def test_entries_are_deleted(kind, store, ruby, fill):
    every = fill(kind, 3)

    assert SETS[kind]().find_job(every[0]).delete() is True
    assert ruby(f"Sidekiq::{kind}.new.map(&:jid).sort") == sorted(every[1:])
    assert SETS[kind]().clear() == 2
    assert ruby(f"Sidekiq::{kind}.new.size") == 0


@pytest.mark.parametrize("kind", SETS)
def test_a_rescheduled_entry_is_one_entry_with_its_bytes(kind, store, ruby, fill):
    (jid,) = fill(kind, 1)
    (before,) = store.call("ZRANGE", KEYS[kind], 0, -1)

    assert SETS[kind]().find_job(jid).reschedule(FAR_FUTURE + 7) is True

    assert store.call("ZRANGE", KEYS[kind], 0, -1, "WITHSCORES") == [before, b"4000000007.5"]
    assert ruby(f"Sidekiq::{kind}.new.map(&:score)") == [FAR_FUTURE + 7]


@pytest.mark.parametrize("kind", ["ScheduledSet", "RetrySet"])
def test_a_rescheduled_entry_runs_in_ruby_when_it_is_due(kind, stage, fill):
    (jid,) = fill(kind, 1)
    stage.mend_jobs()

    SETS[kind]().find_job(jid).reschedule(timedelta(seconds=0.2))

    stage.wait_ran([jid])
    assert len(SETS[kind]()) == 0


def test_a_retry_runs_in_ruby_at_once(stage, fragile):
    first, second = fragile(2)
    stage.mend_jobs()

    assert RetrySet().find_job(first).retry() is True

    stage.wait_ran([first])
    assert stage.jids("retry") == {second}
    (echo,) = map(decode, stage.store.call("LRANGE", "echoes", 0, -1))
    assert (echo["by"], exact(echo["args"])) == ("ruby", exact([0, *ALL_KINDS]))


def test_a_retry_that_fails_in_ruby_again_has_used_up_no_attempt(store, fragile):
    (jid,) = fragile(1)

    RetrySet().find_job(jid).retry()

    again = wait_until(lambda: (e := RetrySet().find_job(jid)) and e.retried_at and e, "the second failure in Ruby")
    assert again.retry_count == 0
    assert again.failed_at < again.retried_at


def test_all_retries_run_in_ruby(stage, fragile):
    every = fragile(60)
    stage.mend_jobs()

    assert RetrySet().retry_all() == 60

    stage.wait_ran(every)


def test_killed_retries_are_dead_for_ruby_and_run_there_when_revived(stage, ruby, fragile):
    every = fragile(5)
    before = set(stage.store.call("ZRANGE", "retry", 0, -1))

    assert RetrySet().find_job(every[0]).kill() is True
    assert RetrySet().kill_all() == 4

    assert set(stage.store.call("ZRANGE", "dead", 0, -1)) == before
    assert sorted(ruby("Sidekiq::DeadSet.new.map(&:jid)")) == sorted(every)
    stage.mend_jobs()
    assert DeadSet().retry_all() == 5
    stage.wait_ran(every)


def test_a_dead_job_of_ruby_is_revived(stage, fragile):
    first, second = fragile(2, retry=0)
    stage.mend_jobs()

    assert DeadSet().find_job(first).retry() is True

    stage.wait_ran([first])
    assert stage.jids("dead") == {second}


def test_what_we_bury_is_dead_for_ruby(ruby):
    payload = {"class": "Echo", "args": ALL_KINDS, "jid": "0123456789abcdef01234567", "queue": "ruby", "retry": True}

    DeadSet().bury(payload)

    ((found, age),) = ruby("Sidekiq::DeadSet.new.map { |e| [e.item, Time.now.to_f - e.score] }")
    assert {key: exact(found[key]) for key in payload} == {key: exact(value) for key, value in payload.items()}
    assert 0 <= age < 60


def test_scheduled_jobs_run_in_ruby_when_they_are_added(stage, ruby_client, fill):
    every = fill("ScheduledSet", 4)

    assert ScheduledSet().find_job(every[0]).add_to_queue() is True
    assert ScheduledSet().add_all_to_queue() == 3

    stage.wait_ran(every)
    for echo in map(decode, stage.store.call("LRANGE", "echoes", 0, -1)):
        assert exact(echo["args"][1:]) == exact(ALL_KINDS)
        assert abs(echo["payload"]["enqueued_at"] - time.time()) < 60
        assert "at" not in echo["payload"]


# queues


def test_a_queue_reads_as_ruby_reads_it(ruby, ruby_client):
    for number in range(3):
        ruby_client("perform_async", number, *ALL_KINDS, set={"queue": "waiting", "tags": ["vip"]})
    ruby_client("perform_async", "x", set={"queue": "other"})

    theirs = ruby("Sidekiq::Queue.new('waiting').map { |j| [j.item, j.klass, j.jid, j.tags, j.queue, j.latency] }")

    ours = [[job.payload, job.name, job.jid, job.tags, job.queue, job.latency(time.time())] for job in Queue("waiting")]
    assert exact([each[:-1] for each in ours]) == exact([each[:-1] for each in theirs])
    assert [each[-1] for each in ours] == pytest.approx([each[-1] for each in theirs], abs=5)
    assert [queue.name for queue in Queue.all()] == ruby("Sidekiq::Queue.all.map(&:name)")
    assert Queue("waiting").latency() == pytest.approx(ruby("Sidekiq::Queue.new('waiting').latency"), abs=5)
    served = {each.name: (each.size, each.processes) for each in summaries()}
    assert served["waiting"] == (3, 0)


def test_jobs_of_ruby_are_found_and_deleted_by_their_bytes(store, ruby, ruby_client):
    ruby_client.push_bulk({"class": "Echo", "args": [[each] for each in range(MANY_JOBS)], "queue": "waiting"})
    jid = ruby_client("perform_async", *ALL_KINDS, set={"queue": "waiting"})

    queue = Queue("waiting")
    assert queue.delete(queue.find_job(jid)) is True
    assert queue.delete_all(job for job in queue if job.args[0] % 2) == MANY_JOBS // 2

    assert ruby("Sidekiq::Queue.new('waiting').map { |job| job.args.first }") == list(range(MANY_JOBS - 2, -1, -2))
    assert queue.clear() == MANY_JOBS // 2
    assert ruby("Sidekiq::Queue.all.map(&:name)") == []


def test_jobs_that_are_moved_to_rubys_queue_run_there_in_their_order(stage, ruby_client):
    every = ruby_client.push_bulk({"class": "Echo", "args": [[each, *ALL_KINDS] for each in range(20)],
                                   "queue": "waiting"})  # fmt: skip

    assert Queue("waiting").move(reversed(Queue("waiting")), "ruby") == 20

    stage.wait_ran(every)
    echo = decode(stage.store.call("LINDEX", "echoes", 0))
    assert (echo["payload"]["queue"], exact(echo["args"][1:])) == ("ruby", exact(ALL_KINDS))


def test_a_paused_queue_is_still_fetched_by_ruby_without_pro(stage, ruby_client):
    """Said in docs/reference/sidekiq_compatibility.md; Sidekiq Pro and our workers heed it."""
    Queue("ruby").pause()

    stage.wait_ran([ruby_client("perform_async", "x", set={"queue": "ruby"})])


# stats


def test_stats_and_history_are_what_ruby_says(stage, ruby, ruby_client, fragile):
    fragile(3)
    stage.wait_ran([ruby_client("perform_async", "x", set={"queue": "ruby"})])
    ruby_client("perform_async", "x", set={"queue": "waiting"})
    ruby_client("perform_in", 3_600, "x")
    counted = time.time() + 0.5  # Ruby counts at its beats, also what ran before the database was emptied
    wait_until(lambda: any(each.beat > counted for each in ProcessSet()), "Ruby to register again, and to have counted")

    stats = Stats()

    theirs = ruby(STATS)
    assert theirs["processed"] >= 4
    assert {name: getattr(stats, name) for name in theirs} == theirs
    assert stats.queues == ruby("Sidekiq::Stats.new.queues")
    days = ruby("h = Sidekiq::Stats::History.new(5); [h.processed, h.failed].map { |d| d.transform_keys(&:to_s) }")
    history = History(5)
    assert [{str(day): each for day, each in part.items()} for part in (history.processed, history.failed)] == days
    Stats.reset("failed")
    assert ruby("Sidekiq::Stats.new.failed") == 0


# processes


@pytest.fixture
def lone_ruby(store, redis_server):
    """A Ruby process of the test's own, on the queues `alone` and `aside`."""
    server = RubyServer(redis_server.url, queue="alone,aside", threads=2)
    wait_until(lambda: any(each.pid == server.pid for each in ProcessSet()), "Ruby to register", 30)
    yield server
    server.close()


def process_of(server):
    return next(each for each in ProcessSet() if each.pid == server.pid)


def test_a_ruby_process_reads_as_ruby_reads_it(lone_ruby, ruby):
    process = process_of(lone_ruby)

    theirs = ruby("""
        one = Sidekiq::ProcessSet.new.find { |each| each["pid"] == pid }
        {identity: one.identity, host: one["hostname"], pid: one["pid"], tag: one.tag, queues: one.queues,
         concurrency: one["concurrency"], started_at: one["started_at"]}
    """, pid=lone_ruby.pid)  # fmt: skip
    assert {**{name: getattr(process, name) for name in theirs}, "queues": list(process.queues)} == theirs
    assert (process.queues, process.concurrency, process.busy) == (("alone", "aside"), 2, 0)
    assert (process.is_ours, process.is_quiet, process.cluster, process.is_embedded) == (False, False, None, False)
    assert process.rss > 10_000_000
    assert process.started_at <= process.beat <= time.time()
    assert {each.name: each.processes for each in summaries()} == {}


def test_a_ruby_process_is_quieted_and_stopped(lone_ruby, stage, ruby_client):
    jid = ruby_client("perform_async", "x", set={"queue": "alone"})
    stage.wait_ran([jid])

    process_of(lone_ruby).quiet()

    wait_until(lambda: process_of(lone_ruby).is_quiet, "Ruby to be quiet")
    ruby_client("perform_async", "kept", set={"queue": "alone"})
    process_of(lone_ruby).stop()
    assert lone_ruby.wait() == 0
    # Ruby takes its row away; a heartbeat of its own may write it once more, for a minute.
    wait_until(lambda: lone_ruby.pid not in {each.pid for each in ProcessSet()}, "its row to be gone", 90)
    assert [payload["args"] for payload in stage.queued("alone")] == [["kept"]]
    assert stage.ran() == [jid]


def test_a_ruby_process_cannot_end_a_quiet_and_has_no_lease(lone_ruby, store):
    process = process_of(lone_ruby)

    with pytest.raises(UsageError, match="cannot end a quiet"):
        process.resume()
    with pytest.raises(UsageError, match="lease"):
        process.quiet(lease=60)
    assert store.call("EXISTS", f"{process.identity}-signals") == 0


def test_a_ruby_process_dumps_its_threads_and_goes_on(lone_ruby, stage, ruby_client):
    process = process_of(lone_ruby)

    process.dump()

    wait_until(lambda: not stage.store.call("EXISTS", f"{process.identity}-signals"), "Ruby to read it")
    stage.wait_ran([ruby_client("perform_async", "x", set={"queue": "alone"})])
    assert lone_ruby.is_alive()


def test_what_a_ruby_process_runs_is_seen(lone_ruby, stage, ruby_client, ruby):
    jid = ruby_client.of("Hold", "perform_async", *ALL_KINDS, set={"queue": "aside", "tags": ["vip"]})
    wait_until(lambda: stage.store.call("LLEN", "began"), "the job to run in Ruby")

    work = wait_until(lambda: WorkSet().find_work(jid), "the job to show")

    ((identity, tid, theirs),) = ruby("Sidekiq::WorkSet.new.map { |identity, tid, work| [identity, tid, work] }")
    assert (work.identity, work.tid, work.queue, work.run_at) == (identity, tid, "aside", theirs["run_at"])
    assert (work.job.payload, exact(work.job.args)) == (theirs["payload"], exact(ALL_KINDS))
    wait_until(lambda: process_of(lone_ruby).busy == 1, "the rest of that beat")  # Ruby writes it afterwards
    assert WorkSet().size == Stats().workers_size == 1
    stage.store.call("RPUSH", "release", "now")
    stage.wait_ran([jid])
    wait_until(lambda: list(WorkSet()) == [], "nothing to run")


def test_a_ruby_process_that_was_killed_is_pruned(lone_ruby, store):
    process = process_of(lone_ruby)
    lone_ruby.close()

    def cleaned() -> bool:
        store.call("DEL", process.identity, "process_cleanup")  # as after a minute
        return ProcessSet().cleanup() == 1

    wait_until(cleaned, "it to be pruned, once a last beat of it is not on its way any more")
    assert store.call("SISMEMBER", "processes", process.identity) == 0
