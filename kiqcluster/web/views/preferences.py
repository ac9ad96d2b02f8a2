"""Preferences: language and theme, which the browser keeps."""

from __future__ import annotations

from kiqcluster.web.context import Context
from kiqcluster.web.cookies import LANGUAGE, THEME, THEMES
from kiqcluster.web.i18n import LANGUAGES
from kiqcluster.web.routing import Action, Done
from kiqcluster.web.users import Role

__all__ = ["ACTIONS", "PAGES"]

CHOICES = {LANGUAGE: tuple(LANGUAGES), THEME: THEMES}


def prefer(context: Context) -> Done:
    """Keep what was chosen; then show the page on which it was."""
    form = context.request.form
    kept = {name: form[name] for name, choices in CHOICES.items() if form.get(name) in choices}
    back = form.get("back", "/")
    is_ours = back.startswith("/") and not back.startswith("//") and "\\" not in back and back.isprintable()
    return Done("", f"{context.request.script_root}{back if is_ours else '/'}", keep=kept)


PAGES = ()
ACTIONS = (Action("preferences", "/preferences", prefer, role=Role.VIEW, is_change=False),)
