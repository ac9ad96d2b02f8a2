"""Locales that are not UTF-8: what Python reads and writes by default there is not what our files and streams are."""

from __future__ import annotations

import signal
import sys

from tests.kit import wait_until
from tests.process.kiqctl import Kiqctl
from tests.process.test_command import kiqcluster
from tests.stage import Stage

# Its encoding has ASCII only.  Those in use (GBK, EUC-JP, Latin-1) need locales that few machines have.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
KOI8 = {**ASCII, "PYTHONIOENCODING": "koi8-r"}  # of the standard streams; it has no ä
SETTINGS = 'groups = ["büro"]\ntag = "Gerät"\nconcurrency = 1\n'


def test_the_locale_of_these_tests_is_no_utf_8() -> None:
    program = (sys.executable, "-c", "import locale; print(locale.getencoding())")

    assert "utf" not in kiqcluster(program=program, **ASCII).stdout.lower()


def test_a_cluster_and_kiqctl_read_what_is_written_whatever_the_locale(stage: Stage, kiqctl: Kiqctl) -> None:
    settings = stage.folder / "kiqcluster.toml"
    settings.write_text(SETTINGS, encoding="utf-8")
    entries = stage.folder / "cron.yaml"
    entries.write_text("Gespräch: {cron: '0 0 1 1 *', class: tell}\n", encoding="utf-8")
    app = stage.write_application("""
        from kiqcluster import job
        from tests.apps.basic import note

        @job(queue="b\\u00fcro", retry=3)
        def tell(text="x"):
            print(text)
            note("told", len(text))
            raise ValueError(text)
    """)

    cluster = stage.run_cluster("-C", str(settings), app=app, KIQ_CRON_FILE=str(entries), **KOI8)
    stage.push("tell", "中é", queue="büro", retry=3)
    stage.wait_noted("told 2")
    (entry,) = wait_until(lambda: stage.store.call("ZRANGE", "retry", 0, -1), "the job to be retried")
    shown = kiqctl("retries", **KOI8)
    queues = kiqctl("queues", **KOI8)

    assert b'"error_class":"ValueError"' in entry  # not of `print`: what the locale lacks is shown as an escape
    assert "tell" in shown.stdout
    assert "b\\xfcro" in queues.stdout
    cluster.signal(signal.SIGTERM)
    assert cluster.wait() == 0


def test_settings_are_printed_in_any_locale(stage: Stage) -> None:
    (stage.folder / "kiqcluster.toml").write_text(SETTINGS, encoding="utf-8")

    printed = kiqcluster("--print-config", cwd=stage.folder, **KOI8)

    assert printed.returncode == 0
    assert "Ger\\xe4t" in printed.stdout
