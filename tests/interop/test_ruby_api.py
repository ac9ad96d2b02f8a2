"""Every flow of Ruby's Sidekiq::API on what our clients and clusters wrote.

Byte stability: whatever Ruby does by value (LREM, ZREM, ZINCRBY) has to find our bytes, so that exactly one entry is
there afterwards.  What one flow leads to in a cluster is in test_web_actions.py, on processes in test_processes.py.
"""

from __future__ import annotations

import time

import pytest

from kiqcluster import Client
from kiqcluster.sidekiq.ruby_json import decode
from tests.apps.interop import Echo, fragile, held
from tests.interop.programs import exact
from tests.interop.values import ALL_KINDS
from tests.kit import wait_until

pytestmark = pytest.mark.ruby

FAR_FUTURE = 4_000_000_000.5  # epoch seconds
MANY_JOBS = 120  # Ruby reads lists and sets in pages of 50
SETS = {"ScheduledSet": "schedule", "RetrySet": "retry", "DeadSet": "dead"}


def fill(stage, count):
    """Write so many jobs to each set; return class of the set → jids, those that failed first."""
    every = {"RetrySet": stage.fail_jobs(count), "DeadSet": stage.kill_jobs(count)}
    every["ScheduledSet"] = [
        str(jid)
        for jid in Client().push_bulk({"class": Echo, "args": [[each] for each in range(count)], "at": FAR_FUTURE})
    ]
    return every


# Stats and History


def test_stats_that_ruby_resets_are_counted_on(site, ruby):
    site.fail_jobs(3)
    wait_until(lambda: ruby("Sidekiq::Stats.new.failed") == 3, "three failures to be counted")

    ruby("Sidekiq::Stats.new.reset(:failed)")
    assert ruby("s = Sidekiq::Stats.new; [s.processed, s.failed]") == [3, 0]
    ruby("Sidekiq::Stats.new.reset")
    site.wait_ran([Echo.perform_async("x")])

    wait_until(lambda: ruby("s = Sidekiq::Stats.new; [s.processed, s.failed]") == [1, 0], "one more to be counted")


def test_stats_count_queues_largest_first(site, ruby):
    for name, size in (("few", 1), ("many", 3), ("some", 2)):
        Echo.set(queue=name).perform_bulk([[each] for each in range(size)])

    assert list(ruby("Sidekiq::Stats.new.queues").items()) == [("many", 3), ("some", 2), ("few", 1)]
    assert ruby("Sidekiq::Stats.new.enqueued") == 6


def test_history_has_our_jobs_of_today_and_none_of_earlier_days(site, ruby):
    site.fail_jobs(2)
    wait_until(lambda: ruby("Sidekiq::Stats.new.processed") == 2, "two jobs to be counted")

    history = ruby(
        "h = Sidekiq::Stats::History.new(30); [h.processed, h.failed].map { |days| days.transform_keys(&:to_s) }"
    )

    for days in history:
        assert (len(days), max(days), sum(days.values())) == (30, next(iter(days)), 2)
    assert [sum(list(days.values())[2:]) for days in history] == [0, 0]  # midnight may pass meanwhile


# Queue


def test_ruby_walks_through_a_queue_while_it_deletes(site, ruby):
    Echo.set(queue="waiting").perform_bulk([[each] for each in range(MANY_JOBS)])

    seen = ruby("Sidekiq::Queue.new('waiting').map { |job| job.delete if job.args.first.even?; job.args.first }")

    assert seen == list(reversed(range(MANY_JOBS)))
    assert [payload["args"][0] for payload in site.queued("waiting")] == list(range(1, MANY_JOBS, 2))


def test_ruby_finds_a_job_deep_in_a_queue_and_reads_it(site, ruby):
    before = time.time()
    jid = Echo.set(queue="waiting", tags=["vip", "é"]).perform_async(*ALL_KINDS)
    Echo.set(queue="waiting").perform_bulk([[each] for each in range(MANY_JOBS)])

    found = ruby("""
        job = Sidekiq::Queue.new("waiting").find_job(jid)
        {item: job.item, klass: [job.klass, job.display_class], args: [job.args, job.display_args], queue: job.queue,
         tags: job.tags, times: [job.created_at.to_f, job.enqueued_at.to_f], latency: job.latency, value: job.value}
    """, jid=jid)  # fmt: skip

    assert found["klass"] == ["Echo", "Echo"]
    assert exact(found["args"]) == exact([ALL_KINDS, ALL_KINDS])
    assert (found["queue"], found["tags"], found["item"]["jid"]) == ("waiting", ["vip", "é"], jid)
    assert all(before - 1e-3 <= each <= time.time() for each in found["times"])
    assert 0 < found["latency"] <= time.time() - before + 1e-3  # stamps are whole milliseconds, rounded down
    assert decode(found["value"].encode()) == found["item"]
    assert ruby("Sidekiq::Queue.new('waiting').find_job('nobody')") is None


def test_ruby_clears_a_queue(site, ruby):
    Echo.set(queue="waiting").perform_bulk([[each] for each in range(MANY_JOBS)])

    ruby("Sidekiq::Queue.new('waiting').clear")

    assert ruby("[Sidekiq::Queue.all.map(&:name), Sidekiq::Queue.new('waiting').size]") == [[], 0]
    assert site.store.call("EXISTS", "queue:waiting") == 0


# sets


def test_ruby_walks_through_our_sets_newest_first(site, ruby):
    every = fill(site, MANY_JOBS)

    for kind, expected in every.items():
        found = ruby(f"Sidekiq::{kind}.new.map {{ |entry| [entry.jid, entry.score] }}")
        assert {jid for jid, _ in found} == set(expected), kind
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True), kind


@pytest.mark.parametrize("kind", SETS)
def test_ruby_finds_fetches_and_scans_our_entries(kind, site, ruby):
    every = fill(site, 3)[kind]
    jid = every[1]

    found = ruby(f"""
        set = Sidekiq::{kind}.new
        entry = set.find_job(jid)
        {{find: entry.jid, by_score: set.fetch(entry.score, jid).map(&:jid),
          by_range: set.fetch((entry.score - 100)..(entry.score + 100)).map(&:jid).sort, scan: set.scan(jid).map(&:jid),
          glob: set.scan('*"class":*').map(&:jid).sort, nobody: set.scan("nobody").count, at: entry.at.to_f,
          score: entry.score, error: entry.error?, unknown: set.find_job("nobody")}}
    """, jid=jid)  # fmt: skip

    assert found["find"] == jid
    assert found["by_score"] == [jid]
    assert found["scan"] == [jid]
    assert found["by_range"] == found["glob"] == sorted(every)
    assert (found["nobody"], found["unknown"]) == (0, None)
    assert found["error"] is (kind != "ScheduledSet")
    assert abs(found["at"] - found["score"]) < 1e-3


@pytest.mark.parametrize("kind", SETS)
def test_ruby_deletes_our_entries_by_value_and_by_score_and_jid(kind, site, ruby):
    every = fill(site, 4)[kind]

    ruby(f"""
        set = Sidekiq::{kind}.new
        set.find_job(first).delete
        set.delete(set.find_job(second).score, second)
        set.delete_by_value(set.name, set.find_job(third).value)
    """, first=every[0], second=every[1], third=every[2])  # fmt: skip

    assert site.jids(SETS[kind]) == {every[3]}
    ruby(f"Sidekiq::{kind}.new.clear")
    assert site.jids(SETS[kind]) == set()


@pytest.mark.parametrize("kind", SETS)
def test_ruby_reschedules_our_entries_and_each_stays_one(kind, site, ruby):
    every = fill(site, 3)[kind]
    before = set(site.store.call("ZRANGE", SETS[kind], 0, -1))

    ruby(f"Sidekiq::{kind}.new.to_a.each {{ |entry| entry.reschedule(at) }}", at=FAR_FUTURE + 1)

    after = site.store.call("ZRANGE", SETS[kind], 0, -1, "WITHSCORES")
    assert set(after[::2]) == before
    assert len(before) == len(every)
    assert {float(score) for score in after[1::2]} == {FAR_FUTURE + 1}


@pytest.mark.parametrize("way", ["failed twice", "moved by our poller", "put off", "failed in Python, from Ruby"])
def test_an_entry_with_a_history_is_rescheduled_as_one(way, site, ruby, ruby_client):
    if way == "put off":
        jid = ruby_client.push({"class": "Never::Heard", "args": ALL_KINDS, "retry": True})
        name = "schedule"
    elif way == "failed in Python, from Ruby":
        jid = ruby_client.of("Acme::Fragile", "perform_async", *ALL_KINDS, set={"backtrace": True, "tags": ["é"]})
        name = "retry"
    else:
        jid = fragile.perform_in(0.2, *ALL_KINDS) if way == "moved by our poller" else fragile.perform_async(*ALL_KINDS)
        name = "retry"
    wait_until(lambda: jid in site.jids(name), "the entry")
    if way == "failed twice":
        ruby("Sidekiq::RetrySet.new.first.reschedule(1)")
        wait_until(lambda: site.entries("retry").get(jid, {}).get("retry_count") == 1, "its second failure")
    (before,) = site.store.call("ZRANGE", name, 0, -1)

    ruby("set = Sidekiq::JobSet.new(name); set.first.reschedule(at)", name=name, at=FAR_FUTURE)

    assert site.store.call("ZRANGE", name, 0, -1, "WITHSCORES") == [before, b"4000000000.5"]
    assert ruby("set = Sidekiq::JobSet.new(name); set.first.delete", name=name) is True


def test_a_rescheduled_job_runs_when_it_is_due_then(site, ruby):
    jid = Echo.perform_at(FAR_FUTURE, "x")

    ruby("Sidekiq::ScheduledSet.new.find_job(jid).reschedule(Time.now.to_f + 0.2)", jid=jid)

    site.wait_ran([jid])
    assert site.store.call("ZCARD", "schedule") == 0


def test_ruby_adds_every_scheduled_job_to_its_queue(site, ruby):
    every = [
        Echo.set(queue=queue).perform_at(FAR_FUTURE, number) for number in range(5) for queue in ("default", "low")
    ]

    ruby("Sidekiq::ScheduledSet.new.each(&:add_to_queue)")

    site.wait_ran(every)
    assert site.jids("schedule") == set()


def test_ruby_schedules_a_payload_of_its_own_for_us(site, ruby):
    jid = "0123456789abcdef01234567"
    item = {"class": "Echo", "args": ALL_KINDS, "jid": jid, "queue": "default", "retry": True, "created_at": 1.5}

    ruby("Sidekiq::ScheduledSet.new.schedule(1.0, item)", item=item)

    site.wait_ran([jid])
    assert site.store.call("ZCARD", "schedule") == 0


def test_ruby_retries_all(site, ruby):
    every = site.fail_jobs(MANY_JOBS)
    site.mend_jobs()

    ruby("Sidekiq::RetrySet.new.retry_all")

    site.wait_ran(every)
    assert site.store.call("ZCARD", "retry") == 0


def test_ruby_kills_all_and_revives_all(site, ruby):
    every = site.fail_jobs(MANY_JOBS)
    before = set(site.store.call("ZRANGE", "retry", 0, -1))

    ruby("Sidekiq::RetrySet.new.kill_all")
    assert set(site.store.call("ZRANGE", "dead", 0, -1)) == before
    site.mend_jobs()
    ruby("Sidekiq::DeadSet.new.retry_all")

    site.wait_ran(every)
    assert site.jids("dead") == site.jids("retry") == set()


def test_rubys_death_handlers_are_told_of_our_job(site, ruby):
    (jid,) = site.fail_jobs(1)

    reports = ruby("""
        found = []
        handler = ->(job, error) { found << [job["jid"], job["class"], error.message] }
        Sidekiq.death_handlers << handler
        Sidekiq::RetrySet.new.find_job(jid).kill
        Sidekiq.death_handlers.delete(handler)
        found
    """, jid=jid)  # fmt: skip

    assert reports == [[jid, "Acme::Fragile", "Job killed by API"]]


def test_an_entry_shares_its_score_with_others_and_is_still_told_from_them(site, ruby):
    first, second, third = Client().push_bulk({"class": Echo, "args": [[1], [2], [3]], "at": FAR_FUTURE})

    ruby("Sidekiq::ScheduledSet.new.find_job(jid).add_to_queue", jid=second)

    site.wait_ran([second])
    assert site.jids("schedule") == {first, third}
    scores = site.store.call("ZRANGE", "schedule", 0, -1, "WITHSCORES")[1::2]
    assert scores == [b"4000000000.5", b"4000000000.5"]


def test_ruby_reads_the_error_of_a_dead_job(site, ruby):
    (jid,) = site.kill_jobs(1)

    (entry,) = ruby(
        "Sidekiq::DeadSet.new.map { |e| [e.jid, *e.item.values_at('error_class', 'error_message'), "
        "e.error_backtrace.last, e.queue] }"
    )

    assert entry[:3] == [jid, "ValueError", "broken in Python ✗"]
    assert entry[3] == "ValueError: broken in Python ✗"
    assert entry[4] == "default"


# processes and work


def test_ruby_adds_up_our_processes(site, ruby):
    totals = ruby("""
        set = Sidekiq::ProcessSet.new
        {size: set.size, concurrency: set.total_concurrency, rss: set.total_rss, leader: set.leader,
         cleanup: set.cleanup, each: set.map(&:queues).sort, tags: set.map(&:tag), labels: set.map(&:labels)}
    """)

    assert (totals["size"], totals["concurrency"], totals["leader"], totals["cleanup"]) == (2, 4, "", 0)
    assert totals["rss"] > 20_000
    assert totals["each"] == [["default"], ["low"]]
    assert totals["labels"] == [["kiqcluster"], ["kiqcluster"]]


def test_ruby_prunes_a_process_of_ours_that_is_gone(site, ruby):
    gone = "host:1:0123456789ab"
    site.store.call("SADD", "processes", gone)

    assert ruby("Sidekiq::ProcessSet.new(false).cleanup") == 1

    assert len(site.store.call("SMEMBERS", "processes")) == 2


def test_ruby_sees_who_runs_what(site, ruby):
    running = {held.set(queue=queue).perform_async(queue, *ALL_KINDS): queue for queue in ("default", "low")}
    wait_until(lambda: site.store.call("LLEN", "began") == 2, "both jobs to run")
    ruby("Sidekiq::ProcessSet.new.each(&:dump_threads)")  # any signal is followed by a beat

    def work():
        rows = ruby("Sidekiq::WorkSet.new.map { |id, tid, work| [id, tid, work] }")
        shown = {row[2]["payload"]["jid"]: row[2]["queue"] for row in rows}
        return rows if shown == running else None  # before the beat, what ran at an earlier one

    rows = wait_until(work, "both to show", seconds=5)
    assert len({row[0] for row in rows}) == 2
    assert all(exact(row[2]["payload"]["args"][1:]) == exact(ALL_KINDS) for row in rows)
    assert ruby("[Sidekiq::WorkSet.new.size, Sidekiq::Stats.new.workers_size]") == [2, 2]
    site.store.call("RPUSH", "release", "1", "2")
    site.wait_ran(list(running))
    ruby("Sidekiq::ProcessSet.new.each(&:dump_threads)")
    wait_until(lambda: ruby("[Sidekiq::WorkSet.new.count, Sidekiq::WorkSet.new.size]") == [0, 0], "nobody to be busy")
    assert sorted(site.ran()) == sorted(running)
