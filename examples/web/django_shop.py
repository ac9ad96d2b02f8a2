"""A Django application with the pages at /ops/jobs, for its staff, by their permissions (kiqcluster.contrib.django).

Prepare:  python -m examples.web.django_shop      (tables, and the users ada: "admin", and bob: "viewer")
Run it:   waitress-serve --listen=127.0.0.1:8000 examples.web.django_shop:application
"""

from __future__ import annotations

import os

import django
from django.conf import settings
from django.contrib.auth import authenticate, login
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.middleware.csrf import get_token
from django.urls import re_path

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    DATABASES={
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DATABASE", "shop.sqlite3")}
    },
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "kiqcluster.contrib.django",
    ],
    LOGIN_URL="/login",
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ],
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("SHOP_SECRET", "for this example only"),
)
django.setup()

from kiqcluster.contrib.django.views import pages  # noqa: E402  # views are imported once Django is set up

PREFIX = "/ops/jobs"
PASSWORDS = {"ada": "admin", "bob": "viewer"}  # of the example's users
FORM = """<form method="post"><input type="hidden" name="csrfmiddlewaretoken" value="{}">
<input name="name"><input name="password" type="password"><button>Sign in</button></form>"""


def home(_: HttpRequest) -> HttpResponse:
    return HttpResponse("the shop")


def sign_in(request: HttpRequest) -> HttpResponse:
    user = authenticate(request, username=request.POST.get("name"), password=request.POST.get("password"))
    if user is None:
        return HttpResponse(FORM.format(get_token(request)))
    login(request, user)
    return HttpResponseRedirect(f"{PREFIX}/")


urlpatterns = [re_path(r"^$", home), re_path(r"^login$", sign_in), re_path(rf"^{PREFIX[1:]}(?P<path>(?:/.*)?)$", pages)]
application = WSGIHandler()


def prepare() -> None:
    """Make the tables, and two users."""
    from django.contrib.auth.models import User as Person  # models can be imported once Django is set up

    call_command("migrate", verbosity=0)
    if not Person.objects.exists():
        Person.objects.create_superuser("ada", password=PASSWORDS["ada"])
        Person.objects.create_user("bob", password=PASSWORDS["bob"], is_staff=True)


if __name__ == "__main__":
    prepare()
