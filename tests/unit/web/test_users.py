"""Who may come in: this host only, unless something says otherwise; roles; and credentials, which are hard to guess."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
from werkzeug.security import generate_password_hash
from werkzeug.test import Client, create_environ, run_wsgi_app

from kiqcluster.errors import UsageError
from kiqcluster.store import Store
from kiqcluster.web import Role, User, create_app
from kiqcluster.web.settings import read_settings
from tests.kit import ManualClock

NOBODY = "redis://127.0.0.1:1/0"  # where no Redis is: whoever is let in is told so, 503
LET_IN = 503
TOKEN = "s3cret-token"
FORWARDED = (
    *("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-By"),
    *("X-Forwarded", "X-Real-IP", "Via", "CF-Connecting-IP", "True-Client-IP", "X-Client-IP", "X-Original-Host"),
    *(
        "X-Envoy-External-Address",
        "Client-IP",
        "X-Rewrite-URL",
        "X-ARR-SSL",
        "Ali-CDN-Real-IP",
        "X-Amzn-Trace-Id",
        "X-Remote-User",
        "Fly-Client-IP",
        "X-Cluster-Client-Ip",
    ),
)
QUICK = "pbkdf2:sha256:1000"  # a hash that takes no tenth of a second
SETTINGS = {
    "users": [f"ada admin {generate_password_hash('right', QUICK)}"],
    "tokens": [f"ci view {hashlib.sha256(TOKEN.encode()).hexdigest()}"],
}


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the hash with which unknown names are compared made like those of the settings."""
    monkeypatch.setattr("kiqcluster.web.users.generate_password_hash", lambda text: generate_password_hash(text, QUICK))


def ask(
    address: str = "127.0.0.1",
    headers: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    host: str = "localhost",
    **options: Any,
) -> int:
    """Return the status of a request."""
    app = create_app(store=Store(NOBODY), settings=settings or {}, **options)
    base = f"http://{host}"
    return Client(app).get("/", base, headers=headers, environ_base={"REMOTE_ADDR": address}).status_code


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


class TestWithoutSettings:
    @pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
    def test_this_host_may_come_in(self, address: str) -> None:
        assert ask(address) == LET_IN

    @pytest.mark.parametrize("address", ["10.0.0.7", "::2", "", "localhost.evil.example", "::ffff:10.0.0.7"])
    def test_no_other_host_may(self, address: str) -> None:
        assert ask(address) == 403

    def test_nobody_may_who_names_no_host(self) -> None:
        app = create_app(store=Store(NOBODY), settings={})
        environ = create_environ("/", "http://localhost", environ_base={"REMOTE_ADDR": "127.0.0.1"})
        del environ["HTTP_HOST"]

        for host in ({}, {"HTTP_HOST": ""}):  # servers make either of an empty `Host:`
            _, status, _ = run_wsgi_app(app, {**environ, **host})
            assert status.startswith("400")

    @pytest.mark.parametrize("name", [*FORWARDED, *(each.lower() for each in FORWARDED[:3])])
    def test_nobody_may_through_a_proxy(self, name: str) -> None:
        assert ask(headers={name: "10.0.0.7"}) == 403

    @pytest.mark.parametrize("protocol", ["HTTP/1.0", "HTTP/0.9"])
    def test_nobody_may_through_a_proxy_that_says_nothing_but_speaks_an_old_protocol(self, protocol: str) -> None:
        app = create_app(store=Store(NOBODY), settings={})
        environ = {"REMOTE_ADDR": "127.0.0.1", "SERVER_PROTOCOL": protocol}

        assert Client(app).get("/", environ_base=environ, environ_overrides=environ).status_code == 403

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8083"])
    def test_no_other_name_of_this_host_is_answered(self, host: str) -> None:
        assert ask(host=host) == 400

    @pytest.mark.parametrize("host", ["localhost:8083", "127.0.0.1:8083", "[::1]:8083"])
    def test_its_own_names_are(self, host: str) -> None:
        assert ask(host=host) == LET_IN

    @pytest.mark.parametrize("host", ["jobs.example", "jobs.example:8083"])
    def test_a_name_of_the_setting_lets_nobody_in_without_users(self, host: str) -> None:
        assert ask(host=host, settings={"hosts": ["jobs.example"]}) == 403
        assert ask(host="localhost", settings={"hosts": ["jobs.example"]}) == LET_IN
        assert ask(host="evil.example", settings={"hosts": ["jobs.example"]}) == 400

    def test_a_name_of_the_setting_is_answered_where_something_says_who_may_come_in(self) -> None:
        settings = {"hosts": ["jobs.example"]}

        assert ask(host="jobs.example", settings=settings, authorize=lambda _: User("ada")) == LET_IN
        assert ask(host="jobs.example", settings={**SETTINGS, **settings}) == 401


class TestHosts:
    def test_only_the_names_of_the_setting_are_answered(self) -> None:
        settings = {**SETTINGS, "hosts": ["jobs.example"]}
        headers = basic("ada", "right")

        assert ask(settings=settings, headers=headers, host="jobs.example") == LET_IN
        assert ask(settings=settings, headers=headers, host="evil.example") == 400


class TestCredentials:
    def test_who_has_none_is_asked_for_them(self) -> None:
        assert ask(settings=SETTINGS) == 401

    def test_the_right_ones_are_let_in_from_anywhere(self) -> None:
        for headers in (basic("ada", "right"), {"Authorization": f"Bearer {TOKEN}"}):
            assert ask("10.0.0.7", headers, SETTINGS) == LET_IN

    @pytest.mark.parametrize(
        "value",
        [
            basic("ada", "wrong")["Authorization"],
            basic("eve", "right")["Authorization"],
            basic("", "")["Authorization"],
            "Bearer wrong",
            "Bearer",
            "Basic !!!",
            "Digest x=y",
            f"Bearer {SETTINGS['tokens'][0].split()[2]}",
        ],
    )
    def test_wrong_ones_are_not(self, value: str) -> None:
        assert ask("127.0.0.1", {"Authorization": value}, SETTINGS) == 401

    def test_guesses_are_slowed_down_for_their_address_only(self) -> None:
        clock = ManualClock()
        client = Client(create_app(store=Store(NOBODY), settings=SETTINGS, clock=clock))

        def guess(address: str, password: str) -> int:
            return client.get("/", headers=basic("ada", password), environ_base={"REMOTE_ADDR": address}).status_code

        assert [guess("10.0.0.7", "wrong") for _ in range(10)] == [401] * 10
        assert guess("10.0.0.7", "right") == 429
        assert guess("10.0.0.8", "right") == LET_IN
        clock.time += 60
        assert guess("10.0.0.7", "wrong") == 401


class TestGuesses:
    """From one address, which many people may share."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def client(self, clock: ManualClock) -> Client:
        known = generate_password_hash("bobs", QUICK)
        users = [
            *SETTINGS["users"],
            *(f"{name} view {known}" for name in ("bob", *(f"user-{at}" for at in range(101)))),
        ]
        return Client(create_app(store=Store(NOBODY), settings={**SETTINGS, "users": users}, clock=clock))

    def guess(self, client: Client, name: str, password: str, address: str = "10.0.0.7") -> int:
        environ = {"REMOTE_ADDR": address}
        return client.get("/", headers=basic(name, password), environ_base=environ).status_code

    @pytest.mark.parametrize("guessed", ["eve", "ada", pytest.param("", marks=pytest.mark.full)])
    def test_those_of_one_name_keep_no_other_name_out(self, client: Client, guessed: str) -> None:
        assert [self.guess(client, guessed, f"{at}") for at in range(12)] == [401] * 10 + [429] * 2

        assert self.guess(client, "bob", "wrong") == 401
        assert self.guess(client, "bob", "bobs") == LET_IN

    def test_tokens_of_somebody_else_are_not_counted(self, client: Client) -> None:
        """A proxy with single sign-on may send its own with each request, from one address for everybody."""
        headers, environ = {"Authorization": "Bearer eyJhbGciOi.eyJzdWIiOi.c2ln"}, {"REMOTE_ADDR": "10.0.0.7"}
        codes = [client.get("/", headers=headers, environ_base=environ).status_code for _ in range(200)]

        assert codes == [401] * 200
        assert [self.guess(client, f"user-{at}", "x") for at in range(100)] == [401] * 100

    def test_those_of_many_names_are_slowed_down_for_their_address(self, client: Client, clock: ManualClock) -> None:
        assert [self.guess(client, f"user-{at}", "x") for at in range(100)] == [401] * 100

        assert self.guess(client, "user-100", "x") == 429
        assert self.guess(client, "bob", "bobs") == 429
        assert self.guess(client, "bob", "bobs", "10.0.0.8") == LET_IN
        clock.time += 60
        assert [self.guess(client, f"user-{at}", "x") for at in range(70)] == [401] * 60 + [429] * 10

    def test_a_name_is_guessed_at_five_seconds_each_however_long_it_goes_on(
        self, client: Client, clock: ManualClock
    ) -> None:
        codes = []
        for at in range(300):
            codes.append(self.guess(client, "ada", f"{at}"))
            clock.time += 1

        assert codes.count(401) <= 10 + 300 / 5
        assert set(codes) == {401, 429}

    def test_a_password_that_was_right_lately_is_not_held_up(self, client: Client) -> None:
        assert self.guess(client, "bob", "bobs") == LET_IN
        for at in range(12):
            self.guess(client, "bob", f"{at}")

        assert self.guess(client, "bob", "bobs") == LET_IN

    def test_who_has_to_wait_is_told_for_how_long(self, client: Client) -> None:
        for at in range(10):
            self.guess(client, "bob", f"{at}")

        answer = client.get("/", headers=basic("bob", "bobs"), environ_base={"REMOTE_ADDR": "10.0.0.7"})

        assert (answer.status_code, 1 <= int(answer.headers["Retry-After"]) <= 6) == (429, True)


class TestAuthorize:
    def test_the_hook_alone_decides(self) -> None:
        assert ask("10.0.0.7", authorize=lambda _: User("ada", Role.VIEW)) == LET_IN
        assert ask("127.0.0.1", authorize=lambda _: None) == 403

    def test_credentials_are_for_those_whom_it_does_not_know(self) -> None:
        assert ask("10.0.0.7", basic("ada", "right"), SETTINGS, authorize=lambda _: None) == LET_IN

    @pytest.mark.parametrize(
        "user",
        [
            *(True, False, "ada", 3, {"name": "ada"}, ("ada", Role.ADMIN)),
            *(User("ada", 3), User("ada", "admin"), User("ada", 99), User("ada", None)),  # type: ignore[arg-type]
            *(User(None, Role.ADMIN), User(7, Role.ADMIN)),  # type: ignore[arg-type]
        ],
    )
    def test_what_is_no_user_is_not_let_in(self, user: Any) -> None:
        assert ask(authorize=lambda _: user) == 500

    def test_a_hook_that_fails_lets_nobody_in(self) -> None:
        assert ask(authorize=lambda _: User("ada", Role(1 // 0))) == 500


class TestSettings:
    @pytest.mark.parametrize(
        "table",
        [
            {"user": []},
            {"users": "ada admin x"},
            {"users": ["ada admin"]},
            {"users": ["ada root scrypt:1:1:1$a$ff"]},
            {"users": ["ada admin hunter2"]},
            {"tokens": ["ci view s3cret"]},
            {"language": "xx"},
            {"read_only": "yes"},
            {"hosts": [1]},
            {"root_path": "jobs"},
            {"root_path": "//evil.example"},
            {"root_path": "/jobs?x"},
            {"root_path": 1},
            {"trusted_proxies": ["proxy.example"]},
            {"trusted_proxies": "10.0.0.7"},
        ],
    )
    def test_a_slip_is_refused_and_no_secret_shown(self, table: dict[str, Any]) -> None:
        with pytest.raises(UsageError) as refused:
            read_settings(table)

        assert "hunter2" not in str(refused.value)
        assert "s3cret" not in str(refused.value)

    def test_the_table_of_the_configuration_is_read(self) -> None:
        settings = read_settings({**SETTINGS, "language": "ja", "read_only": True, "hosts": ["a.example"]})

        assert (settings.users[0].name, settings.users[0].role) == ("ada", Role.ADMIN)
        assert (settings.tokens[0].name, settings.tokens[0].role) == ("ci", Role.VIEW)
        assert (settings.language, settings.read_only, settings.hosts) == ("ja", True, ("a.example",))
