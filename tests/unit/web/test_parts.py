"""Parts of the web pages: formats, arguments, the rate limit, files, and what no page prints."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from kiqcluster import job
from kiqcluster.api import JobRecord
from kiqcluster.application.registry import Registry
from kiqcluster.web import assets, formats, rate_limit
from kiqcluster.web.arguments import shown_arguments
from kiqcluster.web.templating import encode_page, environment
from tests.kit import ManualClock


def record(**fields: object) -> JobRecord:
    return JobRecord(json.dumps({"class": "Send", "args": [7, "secret", {"a": 1}], "jid": "j", **fields}).encode())


class TestArguments:
    def test_they_are_filtered_as_in_logs(self, registry: Registry) -> None:
        assert shown_arguments(record(), None) == "7, [FILTERED], [FILTERED]"

    def test_what_a_class_declares_is_shown(self, registry: Registry) -> None:
        @job(name="Send", loggable_arguments=[1])
        def send(number: int, name: str, more: dict[str, int]) -> None: ...

        assert shown_arguments(record(), None) == '7, "secret", [FILTERED]'

    def test_the_application_may_show_more_or_less(self, registry: Registry) -> None:
        assert shown_arguments(record(), lambda name, args: f"{name} to {args[1]}") == "Send to secret"
        assert shown_arguments(record(), lambda *_: None) == "7, [FILTERED], [FILTERED]"

    def test_a_hook_that_fails_shows_nothing(self, registry: Registry) -> None:
        assert shown_arguments(record(), lambda *_: str(1 / 0)) == "[FILTERED]"

    def test_an_encrypted_argument_reaches_no_hook(self, registry: Registry) -> None:
        seen: list[object] = []
        shown_arguments(record(encrypt=True), lambda _, args: seen.append(args))

        assert seen == [[7, "secret", "[FILTERED]"]]

    def test_bytes_that_are_no_job_are_not_shown(self, registry: Registry) -> None:
        assert shown_arguments(JobRecord(b"secret \xff"), None) == "[FILTERED]"


class TestRateLimit:
    def test_so_many_at_once_then_so_many_a_second(self) -> None:
        clock = ManualClock()
        limit = rate_limit.RateLimit(clock, 3, 0.5)

        assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 2.0]
        assert limit.take("b") == 0
        clock.time += 2
        assert limit.take("a") == 0
        assert limit.take("a") > 0

    def test_it_remembers_a_limited_number_of_keys(self) -> None:
        limit = rate_limit.RateLimit(ManualClock(), 3, 0.5)
        for number in range(rate_limit.MAX_KEYS + 10):
            limit.take(str(number))

        assert len(limit._buckets) <= rate_limit.MAX_KEYS + 1


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (formats.number(1_204_331), "1,204,331"),
        (formats.number(10**5_000), "1.0e+5000"),
        (formats.number("7"), "–"),
        (formats.duration(0.42), "0.4s"),
        (formats.duration(898), "14m 58s"),
        (formats.duration(float("nan")), "–"),
        (formats.count_bytes(0), "0 B"),
        (formats.count_bytes(41_000_000), "41 MB"),
        (formats.count_bytes(1_500_000_000), "1.5 GB"),
        (formats.rate(0.25), "0.25"),
        (formats.rate(1_204.4), "1,204"),
        (formats.shown_time(1_795_168_740.5), "2026-11-20 09:59:00 UTC"),
        (formats.shown_time(1e30), "–"),
    ],
)
def test_numbers_and_times_are_text(shown: str, text: str) -> None:
    assert shown == text


def test_no_page_has_what_misleads_a_reader() -> None:
    assert encode_page("a\x00b\x1bc\u202ed\ud800e\nf") == "a␀b␛c\ufffdd\ufffde\nf".encode()


def test_a_template_that_shortens_nothing_prints_any_value() -> None:
    template = environment("en").from_string("{{ number }} {{ text|length }} {{ text }}")

    text = template.render(number=10**5_000, text="<" * 300_000)

    assert text.startswith("1.0e+5000 300000 &lt;")
    assert len(text) < 500_000


class TestAssets:
    def test_each_has_a_path_with_a_hash_of_its_content(self) -> None:
        for asset in assets.assets().values():
            assert asset.path == f"/static/{hashlib.sha256(asset.body).hexdigest()[:12]}/{asset.name}"

    def test_files_of_others_are_as_they_were_published(self) -> None:
        rows = re.findall(
            r"^\| (\S+) \| npm .*\| ([0-9a-f]{64}) \|$",
            (assets.FOLDER / "vendor/README.md").read_text(),
            re.MULTILINE,
        )

        found = {path.name for path in (assets.FOLDER / "vendor").iterdir()} - {"README.md"}
        assert {name for name, _ in rows} == found
        for name, digest in rows:
            assert hashlib.sha256((assets.FOLDER / "vendor" / name).read_bytes()).hexdigest() == digest
