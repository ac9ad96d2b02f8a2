"""App: the WSGI application.  A request, from its arrival to its answer:

1. files            of static/, for everybody
2. host, user       who asks, and under which name
3. pages            view → template; of a live part only its block
4. actions          role, origin, token, question; then the change, an audit event, and 303 to a page
5. what went wrong  a page that says so; while Redis is away 503, which asks again by itself

Runs in: the threads of a WSGI server, all at once.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

from werkzeug.exceptions import BadRequest, Forbidden, HTTPException, TooManyRequests
from werkzeug.routing import MapAdapter, RequestRedirect
from werkzeug.wrappers import Request, Response

from kiqcluster.api.bulk import BulkRunner
from kiqcluster.errors import KiqError, StoreError, UsageError
from kiqcluster.ipc.stdio import clean
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.events import Events
from kiqcluster.process.logs.log import LOGGER, word_events
from kiqcluster.process.runtime import current_setup
from kiqcluster.process.version import VERSION
from kiqcluster.store import Store, is_outage
from kiqcluster.store.replies import broken_keys
from kiqcluster.web import assets, cookies
from kiqcluster.web.arguments import FormatArguments, shown_arguments
from kiqcluster.web.context import Context, Meter, Shelf
from kiqcluster.web.errors import Trouble, outcome_of, trouble_of
from kiqcluster.web.i18n import LANGUAGES, choose_language, message, translations
from kiqcluster.web.mount import mounted
from kiqcluster.web.rate_limit import DownloadLimit, RateLimit
from kiqcluster.web.routing import CONFIRMED, Action, Done, Download, Page, Table, table, to_path
from kiqcluster.web.security import guard
from kiqcluster.web.settings import WebSettings, read_settings
from kiqcluster.web.templating import encode_page, render
from kiqcluster.web.users import Authorize, Gate, Role, User

__all__ = ["MAX_REQUEST_BYTES", "StartResponse", "WebApp", "create_app"]

COSTLY, COSTLY_PER_SECOND = 30.0, 1.0  # tokens of costly pages, for each user and address
MAX_DOWNLOADS = 4  # files at a time: one that is read slowly keeps a thread, of which `kiqctl web` has 8
MAX_REQUEST_BYTES = 512 * 1_024
MAX_FORM_PARTS = 2_000
MIN_COMPRESSED_BYTES = 1_000
COMPRESSION_LEVEL = 5
HTML = "text/html; charset=utf-8"
IN_DOUBT = message("It may have been done or not. Look before you repeat it.")  # a change, when Redis went away
PLAIN_TROUBLE = "This page has failed; the log of its server says why.\n"

StartResponse = Callable[..., Any]


class WebRequest(Request):
    """A request of a limited size."""

    max_content_length = MAX_REQUEST_BYTES
    max_form_memory_size = MAX_REQUEST_BYTES
    max_form_parts = MAX_FORM_PARTS


def create_app(
    authorize: Authorize | None = None,
    *,
    store: Store | None = None,
    settings: WebSettings | Mapping[str, Any] | None = None,
    format_arguments: FormatArguments | None = None,
    clock: Clock | None = None,
    events: Events | None = None,
) -> WebApp:
    """Return the WSGI application.

    authorize: says who asks; None answers 403.  store: None means the configured one, at the first request.
    settings: as in [web]; None means those of the configuration.  format_arguments: what is shown of arguments, by
    class.  events: where audit events go; None means the log.  Raises UsageError.
    """
    if settings is None:
        settings = current_setup().current_config().web
    if not isinstance(settings, WebSettings):
        settings = read_settings(settings)
    if events is None:
        events = Events()
        word_events(events)
    _check_root_path(settings.root_path, table())
    return WebApp(table(), authorize, store, settings, format_arguments, clock or SystemClock(), events)


def _check_root_path(root_path: str, routes: Table) -> None:
    """Raises UsageError for a path that begins like a page's: nobody could tell whether a proxy has taken it away."""
    first = "/".join(root_path.split("/")[:2])
    if first and (assets.is_asset(f"{first}/") or any(f"{path}/".startswith(f"{first}/") for path in routes.paths())):
        raise UsageError(
            f"[web] root_path {root_path} begins like {first} of the pages themselves, so links would lead to the "
            f"wrong page behind a proxy that takes it away; choose another path, such as /ops{root_path}"
        )


class WebApp:
    """The application.  Its fields do not change once it is made, but for those that guard themselves."""

    def __init__(
        self,
        routes: Table,
        authorize: Authorize | None,
        store: Store | None,
        settings: WebSettings,
        formatter: FormatArguments | None,
        clock: Clock,
        events: Events,
    ) -> None:
        self.routes = routes
        self.settings = settings
        self._store = store
        self._formatter = formatter
        self._clock = clock
        self._events = events
        self._map = routes.url_map
        self._navigation = routes.navigation()
        self._meter = Meter()
        self._shelf = Shelf()
        self._secret = guard.SharedSecret(settings.secret, clock)
        shown = partial(shown_arguments, formatter=formatter)
        self.bulk = BulkRunner(shown, are_arguments_json=formatter is None, clock=clock)
        self._costly = RateLimit(clock, COSTLY, COSTLY_PER_SECOND)
        self._downloads = DownloadLimit(MAX_DOWNLOADS)
        self.gate = Gate(authorize, settings.users, settings.tokens, clock)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request (WSGI)."""
        request = WebRequest(mounted(environ, self.settings.root_path, self.settings.trusted_proxies))
        try:
            response = self._file(request) if assets.is_asset(request.path) else self._answer(request)
        except Exception:  # noqa: BLE001  # even the page of what went wrong has failed
            LOGGER.exception("%s %s failed", request.method, clean(request.path))
            response = Response(PLAIN_TROUBLE, status=500)
        return guard.harden(response)(request.environ, start_response)

    def _file(self, request: WebRequest) -> Response:
        try:
            return assets.answer(request)
        except HTTPException as error:
            return Visit(self, request).trouble(trouble_of(error))

    def _answer(self, request: WebRequest) -> Response:
        visit = Visit(self, request)
        try:
            guard.check_host(request, self.settings.hosts, is_open=self.gate.is_open)
            visit.user = self.gate.user(request)
            return visit.answer()
        except RequestRedirect as redirect:
            return Response(status=308, headers={"Location": redirect.new_url})
        except (HTTPException, KiqError) as error:
            if isinstance(error, StoreError) and not is_outage(error):
                LOGGER.warning("%s %s: %s", request.method, clean(request.path), error)
            return visit.trouble(trouble_of(error))
        except Exception:  # noqa: BLE001  # the border of the application: its server would end the connection
            LOGGER.exception("%s %s failed", request.method, clean(request.path))
            return visit.trouble(Trouble(500))


class Visit:
    """One request on its way through the application.  user: None until it is known."""

    def __init__(self, app: WebApp, request: WebRequest) -> None:
        self._app = app
        self._request = request
        self.user: User | None = None
        self._token, self._is_new = cookies.read_token(request)
        self._language = choose_language(request, app.settings.language)
        self._urls: MapAdapter | None = None
        self._page = ""  # the page that is shown, in the navigation
        self._address = ""  # of the Redis that is shown, without secrets
        self._broken_keys: list[str] = []  # of another type, which the page has met

    def answer(self) -> Response:
        """Return what was asked for.  Raises HTTPException, KiqError."""
        user = self.user
        assert user is not None
        self._urls = self._app._map.bind_to_environ(self._request.environ)
        endpoint, values = self._urls.match()
        if (page := self._app.routes.pages.get(endpoint)) is not None:
            return self._show(page, self._context(user, values))
        return self._act(self._app.routes.actions[endpoint], self._context(user, values))

    def _context(self, user: User, values: Mapping[str, Any]) -> Context:
        assert self._urls is not None
        store = self._app._store or current_setup().current_store()
        self._address = store.address
        return Context(
            request=self._request,
            user=user,
            store=store,
            is_own_store=self._app._store is None,
            bulk=self._app.bulk,
            secret=self._app._secret,
            clock=self._app._clock,
            settings=self._app.settings,
            meter=self._app._meter,
            words=translations(self._language),
            urls=self._urls,
            route=values,
            is_fragment="HX-Request" in self._request.headers,
            formatter=self._app._formatter,
            shelf=self._app._shelf,
        )

    # pages

    def _show(self, page: Page, context: Context) -> Response:
        if context.user.role < page.role:
            raise Forbidden(message("Your role may not see this page."))
        if (cost := page.cost(context) if callable(page.cost) else page.cost) > 0:
            key = f"{context.user.name}|{self._request.remote_addr}"
            if (seconds := self._app._costly.take(key, cost)) > 0:
                raise TooManyRequests(
                    message("You ask for costly pages faster than they are given."), retry_after=int(seconds) + 1
                )
        self._page = page.name
        block = self._request.headers.get("HX-Target", "") if context.is_fragment else ""
        if context.is_fragment and block not in page.blocks:
            raise BadRequest(message("This page has no such live part."))
        with broken_keys() as broken:
            shown = page.view(context)
        self._broken_keys = list(broken)
        if isinstance(shown, Download):
            return self._send(shown, context)
        return self._respond(page.template, {"title": context.gettext(page.title), **shown}, block=block)

    def _respond(self, template: str, data: Mapping[str, Any], status: int = 200, *, block: str = "") -> Response:
        note = None if block else cookies.read_message(self._request)
        text = render(self._language, template, data, {**self._shared(), "message": note}, block)
        response = Response(encode_page(text), status=status, content_type=HTML)
        response.headers["Vary"] = "Accept-Encoding, Accept-Language, Cookie, HX-Request, HX-Target"
        response.headers["Content-Language"] = self._language
        if self._is_new and self.user is not None:
            cookies.keep_token(self._request, response, self._token)
        if note is not None:
            cookies.forget(self._request, response)
        if self._request.accept_encodings.quality("gzip") > 0 and len(response.data) >= MIN_COMPRESSED_BYTES:
            response.data = gzip.compress(response.data, COMPRESSION_LEVEL, mtime=0)
            response.headers["Content-Encoding"] = "gzip"
        return response

    def _leads(self, path: str, name: str) -> str:
        """Return the path of the page of a name, "" if there is no such page."""
        inside = f"{path}{to_path(name)}"
        is_page = self._urls is not None and self._urls.test(inside, "GET")
        return f"{self._request.script_root}{inside}" if is_page else ""

    def _shared(self) -> dict[str, Any]:
        """Return what every template and macro has."""
        user, urls = self.user, self._urls
        root, paths = self._request.script_root, self._app.routes.path
        token = guard.make_token(self._token, user.name) if user is not None else None
        theme = self._request.cookies.get(cookies.THEME, "")
        role = user.role if user is not None and not self._app.settings.read_only else 0
        return {
            "asset": lambda name: f"{root}{assets.asset_path(name)}",
            "url": (lambda name, **values: paths(root, name, values)) if urls is not None else None,
            "leads": self._leads,
            "here": self._request.full_path.rstrip("?"),
            "csrf": (lambda: token) if user is not None else None,
            "user": user,
            "may": lambda name: role >= Role[name.upper()],
            "now": self._app._clock.now(),
            "navigation": self._app._navigation if user is not None and urls is not None else [],
            "page": self._page,
            "section": self._section(),
            "known_pages": self._app.routes.pages,
            "languages": LANGUAGES,
            "theme": theme if theme in cookies.THEMES else cookies.THEMES[0],
            "read_only": self._app.settings.read_only,
            "version": VERSION,
            "address": self._address,
            "broken_keys": self._broken_keys,
        }

    def _section(self) -> str:
        """Return the page of the navigation to which the shown one belongs: both have one title."""
        shown = self._app.routes.pages.get(self._page)
        pages = self._app._navigation if shown is not None else []
        return next((each.name for each in pages if shown is not None and each.title == shown.title), "")

    # actions

    def _act(self, action: Action, context: Context) -> Response:
        """Change something, if who asks may, has asked for it on a page of ours, and has confirmed it."""
        try:
            self._check_role(action, context.user)
            # A proxy that passes on localhost as the Host of open pages is told by the browser's Origin.
            hosts = () if self._app.gate.is_open else self._app.settings.hosts
            guard.check_change(self._request, hosts, self._token, context.user.name)
            if action.question is not None and CONFIRMED not in self._request.form:
                return self._ask(action, context)
            done = action.run(context)
        except Exception as error:
            self._audit(action, context, outcome_of(error))
            raise
        if isinstance(done, Download):
            return self._send(done, context)
        self._audit(action, context, "failed" if done.has_failed else "done", done)
        response = Response(status=303, headers={"Location": done.back})
        for name, value in done.keep.items():
            cookies.keep(self._request, response, name, value, cookies.YEAR_SECONDS)
        if done.text:
            kind = "failed" if done.has_failed else "done"
            cookies.write_message(self._request, response, cookies.Message(done.text, kind))
        return response

    def _check_role(self, action: Action, user: User) -> None:
        """Raise Forbidden for a change that somebody may not make."""
        if action.is_change and self._app.settings.read_only:
            raise Forbidden(message("These pages are read-only; nothing was changed."))
        if action.is_change and user.role < action.role:
            raise Forbidden(message("Your role may not do this; nothing was changed."))

    def _ask(self, action: Action, context: Context) -> Response:
        assert action.question is not None
        question = action.question(context)
        hidden = [pair for pair in self._request.form.items(multi=True) if pair[0] != guard.TOKEN_FIELD]
        data = {"title": question.button, "question": question, "hidden": hidden, "action": self._path()}
        return self._respond("question.html", data)

    def _send(self, download: Download, context: Context) -> Response:
        """Return a file, which is made while it is sent; when it has been sent, an audit event says how much of it.

        Raises TooManyRequests while too many are sent; StoreError where its first part cannot be read.
        """
        lines = iter(download.parts)
        download = replace(download, parts=chain([*islice(lines, 1)], lines))
        parts = self._app._downloads.begin(self._counted(download, context))
        if parts is None:
            raise TooManyRequests(
                message("Too many exports go on in this process. Repeat it when one has ended."), retry_after=10
            )
        response = Response(parts, content_type=download.content_type)
        response.headers["Content-Disposition"] = f'attachment; filename="{download.filename}"'
        return response

    def _counted(self, download: Download, context: Context) -> Iterator[bytes]:
        count, result = 0, "not complete"
        try:
            for part in download.parts:
                count += 1
                yield part
            result = "done"
        except StoreError as error:
            result = f"not complete: {error}"
            yield download.broken_off(error)
        finally:  # the browser may go away in the middle
            who = self._who(context)
            page, target = clean(self._request.path), clean(download.target)
            self._app._events.emit("web_export", **who, page=page, target=target, count=count, result=clean(result))

    def _who(self, context: Context) -> dict[str, str]:
        """Return who asks, for audit events."""
        user = context.user
        address = self._request.remote_addr or ""
        return {"user": clean(user.name), "role": user.role.name.lower(), "address": address}

    def _audit(self, action: Action, context: Context, result: str, done: Done | None = None) -> None:
        if action.is_change:
            self._app._events.emit(
                "web_action",
                **self._who(context),
                action=action.name,
                target=clean(done.target if done is not None and done.target else self._request.path),
                result=clean(result),
            )

    def _path(self) -> str:
        return f"{self._request.script_root}{self._request.path}"

    # what went wrong

    def trouble(self, trouble: Trouble) -> Response:
        """Return the page of what went wrong; of a live part only a line."""
        if trouble.retry and self._request.method not in ("GET", "HEAD"):
            trouble = replace(trouble, reason=IN_DOUBT, headers=(), retry=0)
        block = "reason" if "HX-Request" in self._request.headers else ""
        reason = translations(self._language).gettext(trouble.reason) if trouble.reason else ""
        data = {"title": str(trouble.status), "trouble": trouble, "reason": reason}
        response = self._respond("trouble.html", data, trouble.status, block=block)
        for name, value in trouble.headers:
            response.headers[name] = value
        return response
