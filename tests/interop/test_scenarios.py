"""The scenarios by which we and real Ruby Sidekiq 6.4.1 are held against each other, and the tests that show each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# what → the tests that show it, as `file: name`, all in this folder
SCENARIOS = {
    "1. Ruby pushes (async, in, at, bulk, options) and our cluster runs it, arguments identical": [
        "test_ruby_enqueues: test_python_receives_the_arguments_that_ruby_enqueued",
        "test_ruby_enqueues: test_each_kind_of_argument_arrives_unchanged_on_its_own",
        "test_ruby_enqueues: test_no_job_of_a_bulk_push_is_lost_or_doubled",
        "test_ruby_enqueues: test_options_that_ruby_set_travel_with_the_job",
        "test_ruby_enqueues: test_a_payload_that_ruby_pushed_by_hand_keeps_its_keys",
    ],
    "2. our client pushes, and a Ruby server runs, retries and buries it": [
        "test_python_enqueues: test_ruby_receives_the_arguments_that_python_enqueued",
        "test_python_enqueues: test_no_job_of_a_bulk_push_is_lost_or_doubled",
        "test_python_enqueues: test_options_that_python_set_travel_with_the_job",
        "test_failures: test_a_job_that_failed_in_ruby_goes_on_failing_in_python",
        "test_ruby_serves: test_ruby_goes_on_with_a_job_that_failed_in_python",
        "test_ruby_serves: test_ruby_runs_a_job_that_failed_in_python",
        "test_ruby_serves: test_ruby_buries_a_job_that_failed_in_python_for_the_last_time",
        "test_ruby_serves: test_python_revives_what_ruby_buried_and_ruby_what_python_buried",
    ],
    "3. our heartbeat, running jobs and counters are what Sidekiq::Stats, ProcessSet and WorkSet say": [
        "test_processes: test_ruby_sees_every_field_of_our_process",
        "test_processes: test_ruby_sees_the_jobs_that_run",
        "test_processes: test_ruby_counts_what_we_processed",
        "test_ruby_api: test_ruby_adds_up_our_processes",
        "test_ruby_api: test_ruby_sees_who_runs_what",
        "test_ruby_api: test_history_has_our_jobs_of_today_and_none_of_earlier_days",
        "test_tolerance: test_what_we_write_has_the_type_that_every_version_reads",
    ],
    "4. quiet! and stop! from Ruby reach our workers within a beat": [
        "test_processes: test_the_quiet_button_quiets_that_one_process",
        "test_processes: test_the_stop_button_has_the_process_replaced",
        "test_processes: test_a_stopped_process_finishes_the_job_that_runs",
    ],
    "5. Ruby's API on our entries: retry_all, kill_all, add_to_queue, reschedule, scan, find_job": [
        "test_ruby_api: test_ruby_retries_all",
        "test_ruby_api: test_ruby_kills_all_and_revives_all",
        "test_ruby_api: test_ruby_adds_every_scheduled_job_to_its_queue",
        "test_ruby_api: test_ruby_reschedules_our_entries_and_each_stays_one",
        "test_ruby_api: test_ruby_finds_fetches_and_scans_our_entries",
        "test_ruby_api: test_ruby_walks_through_a_queue_while_it_deletes",
    ],
    "6. Sidekiq::Web on our data: every page, and every button with its token": [
        "test_web_pages: test_every_route_of_the_gem_is_tried",
        "test_web_pages: test_every_page_is_shown",
        "test_web_actions: test_the_chosen_retries_go_and_the_others_stay",
        "test_web_actions: test_without_its_token_no_button_does_anything",
        "test_web_processes: test_quiet_all_is_for_every_process",
        "test_web_processes: test_stop_all_has_every_process_replaced",
    ],
    "7. Ruby and Python share queues and pollers: no job is lost or doubled": [
        "test_mixed_fleet: test_python_and_ruby_share_every_job_and_none_is_lost_or_doubled",
        "test_pollers: test_an_entry_that_both_pollers_see_is_moved_by_one",
    ],
    "8. a Ruby process must stop at once, and ours finish what it put back; and the other way round": [
        "test_ruby_serves: test_ours_finish_what_ruby_puts_back_when_it_must_stop",
        "test_ruby_serves: test_ruby_finishes_what_ours_put_back_when_they_must_stop",
    ],
    "9. byte for byte: what Ruby does by value finds the entries that our poller, retry or client wrote": [
        "test_bytes: test_ruby_would_print_every_payload_that_python_wrote",
        "test_bytes: test_an_entry_that_ruby_reschedules_stays_one_entry",
        "test_bytes: test_ruby_deletes_our_entries_by_their_bytes",
        "test_ruby_api: test_an_entry_with_a_history_is_rescheduled_as_one",
        "test_ruby_api: test_ruby_deletes_our_entries_by_value_and_by_score_and_jid",
    ],
    "10. invalid payloads of one side never crash the other": [
        "test_bad_input: test_bad_input_ends_in_one_set_with_its_reason",
        "test_bad_input: test_every_page_of_ruby_shows_what_became_of_bad_input",
        "test_bad_input: test_no_thread_dies_of_bad_input",
        "test_ruby_serves: test_bytes_that_were_no_job_outlive_a_retry_in_ruby",
        "test_ruby_serves: test_what_no_side_can_run_stops_neither",
        "test_hostile_pages: test_every_page_is_shown_whatever_our_api_does_with_hostile_payloads",
    ],
    "11. the same from our side: kiqcluster.api on what Ruby wrote, and on live Ruby processes": [
        "test_api_on_ruby: test_entries_read_as_ruby_reads_them",
        "test_api_on_ruby: test_all_retries_run_in_ruby",
        "test_api_on_ruby: test_a_ruby_process_is_quieted_and_stopped",
        "test_api_on_ruby: test_what_a_ruby_process_runs_is_seen",
        "test_golden: test_every_field_of_every_entry_is_read",
        "test_golden: test_our_worker_runs_what_lies_in_queues_and_sets",
    ],
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_tests_that_show_a_scenario_are_there(scenario):
    for place in SCENARIOS[scenario]:
        file, name = place.split(": ")
        source = (Path(__file__).parent / f"{file}.py").read_text()

        assert re.search(rf"^def {name}\(", source, re.MULTILINE), place
