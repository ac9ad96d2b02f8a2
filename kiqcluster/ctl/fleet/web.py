"""web: serves the web pages; they need an extra, and are loaded by name: ctl and web do not import each other."""

from __future__ import annotations

import importlib

import click

from kiqcluster.ctl.text.application import load_application
from kiqcluster.ctl.text.options import ADDRESS_SETTINGS, CONTEXT_SETTINGS, RedisChoice, address_options
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.process.runtime import Setup, using_setup

__all__ = ["web"]

LISTEN = "127.0.0.1:8083"
SERVER = "kiqcluster.web.command"
NEEDED = frozenset({"werkzeug", "jinja2", "markupsafe", "polib", "waitress"})
SETTINGS = ADDRESS_SETTINGS | {"web", "dead_max_jobs", "dead_timeout", "shards", "routing"}


@click.command(context_settings=CONTEXT_SETTINGS)
@click.option("--listen", default=LISTEN, metavar="HOST:PORT", help=f"where the pages answer  [{LISTEN}]")
@click.option("--read-only", is_flag=True, help="pages only show; nothing can be changed")
@click.option("--root-path", default="", metavar="PATH", help="path below which browsers find the pages: /ops/jobs")
@click.option(
    "-r",
    "--require",
    multiple=True,
    metavar="APP",
    help="module or file that defines the jobs; pages know more with it",
)
@address_options
@click.pass_context
def web(
    ctx: click.Context, chosen: RedisChoice, listen: str, read_only: bool, root_path: str, require: tuple[str, ...]
) -> None:
    """Serve the web pages.

    Without users or tokens in [web] of the configuration, they answer this host only.  With -r the application is
    imported: arguments that its classes declare as loggable are shown, and to which queue each class goes.
    It needs an extra: pip install 'kiqcluster[web]'.

    \b
      kiqctl web
      kiqctl web --listen 127.0.0.1:8083 --read-only
      kiqctl web --root-path /ops/jobs
    """
    try:
        server = importlib.import_module(SERVER)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        raise UsageError("kiqctl web needs the extra `web`: pip install 'kiqcluster[web]'") from error
    config = chosen.config(SETTINGS)
    store = chosen.store(config)

    def ready(place: str) -> None:
        click.echo(f"kiqctl: the pages of {store.address} are at {place}", err=True)

    with using_setup(Setup(config=config, store=store)):
        if require:
            load_application(require)
        server.serve(store, listen, config.web, read_only=read_only, root_path=root_path, ready=ready)
    ctx.exit(ExitCode.STOPPED)
