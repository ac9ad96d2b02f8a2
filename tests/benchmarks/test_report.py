"""How figures are made of what jobs wrote down, and judged."""

from __future__ import annotations

from benchmarks.ledger import Entry
from benchmarks.measure import Filled, rate_of
from benchmarks.report import Results, Run, render
from benchmarks.targets import PYTHON_PEERS


def marks(*moments: tuple[int, float]) -> list[Entry]:
    """Return marks of processes at times."""
    return [Entry("mark", pid, time, ()) for pid, time in moments]


def results(**rates: list[float]) -> Results:
    """Return results of the workload `noop`, a run for each rate of a peer."""
    runs = [
        Run("noop", peer, number, {"rate": rate}) for peer, each in rates.items() for number, rate in enumerate(each)
    ]
    return Results({}, {}, {}, runs)


class TestRate:
    def test_it_is_the_jobs_between_marks_over_their_time(self) -> None:
        assert rate_of(Filled(3, 100), marks((1, 10.0), (1, 10.5), (1, 12.0))) == 100.0

    def test_it_begins_when_every_process_works(self) -> None:
        early, late = [(1, 0.0), (1, 1.0)], [(2, 1.5), (1, 1.6), (2, 1.7), (1, 1.9)]

        assert round(rate_of(Filled(6, 100), marks(*early, *late))) == 750

    def test_a_process_that_comes_at_the_end_does_not_shorten_the_run(self) -> None:
        assert rate_of(Filled(4, 100), marks((1, 0.0), (1, 1.0), (1, 2.0), (2, 3.0))) == 100.0


class TestTargets:
    def test_they_are_judged_by_medians(self) -> None:
        report = render(results(kiqcluster=[1.0, 600.0, 601.0], sidekiq=[100.0]))

        assert "| noop | jobs/s ÷ Sidekiq's | 6.00 | ≥ 6 | met |" in report

    def test_one_that_is_missed_stands_out(self) -> None:
        assert "| 5.00 | ≥ 6 | **missed** |" in render(results(kiqcluster=[500.0], sidekiq=[100.0]))

    def test_what_was_not_measured_is_neither_met_nor_missed(self) -> None:
        assert "| noop | jobs/s ÷ Sidekiq's | – | ≥ 6 | not measured |" in render(results(kiqcluster=[500.0]))

    def test_the_best_python_peer_is_the_fastest_of_all(self) -> None:
        rates = {peer: [100.0] for peer in PYTHON_PEERS}
        line = "| noop | jobs/s ÷ the best Python peer's | "

        assert f"{line}25.00 | ≥ 25 | met |" in render(results(kiqcluster=[5_000.0], **{**rates, "huey": [200.0]}))
        del rates["huey"]
        assert f"{line}– | ≥ 25 | not measured |" in render(results(kiqcluster=[5_000.0], **rates))


class TestTables:
    def test_cells_show_the_median_and_the_range(self) -> None:
        assert "| huey | 200 (100–400) |" in render(results(huey=[400.0, 100.0, 200.0]))

    def test_a_run_that_failed_is_told_with_its_reason(self) -> None:
        session = results(huey=[100.0])
        session.runs.append(Run("noop", "huey", 2, {}, failure="it ended; the log:\nfirst line\nlast line"))

        assert "round 2 failed: it ended; the log: last line |" in render(session)

    def test_runs_beside_other_work_are_counted(self) -> None:
        noisy = Run("noop", "huey", 1, {"rate": 1.0, "foreign": 0.5})

        assert "| 1 of 1 noisy |" in render(Results({}, {}, {}, [noisy]))
