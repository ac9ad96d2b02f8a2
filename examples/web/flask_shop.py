"""A Flask application with the pages at /ops/jobs, for those who are in its session.

Run it:   waitress-serve --listen=127.0.0.1:8000 examples.web.flask_shop:app
Sign in:  at /login, as ada (password "admin") or bob ("viewer")
"""

from __future__ import annotations

import os

from flask import Flask, redirect, request, session
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.security import check_password_hash, generate_password_hash
from werkzeug.wrappers import Request, Response

from kiqcluster.web import Role, User, create_app

app = Flask(__name__)
app.secret_key = os.environ.get("SHOP_SECRET", "for this example only")

PASSWORDS = {"ada": generate_password_hash("admin"), "bob": generate_password_hash("viewer")}
ROLES = {"ada": Role.ADMIN, "bob": Role.VIEW}
FORM = '<form method="post"><input name="name"><input name="password" type="password"><button>Sign in</button></form>'


@app.get("/")
def home() -> str:
    return "the shop"


@app.route("/login", methods=["GET", "POST"])
def login() -> Response | str:
    name = request.form.get("name", "")
    if check_password_hash(PASSWORDS.get(name, ""), request.form.get("password", "")):
        session["user"] = name
        return redirect("/ops/jobs/")
    return FORM


def authorize(asked: Request) -> User | None:
    """Return who is in the session of the shop."""
    found = app.session_interface.open_session(app, asked)
    name = found.get("user") if found is not None else None
    return User(name, ROLES[name]) if name in ROLES else None


app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/ops/jobs": create_app(authorize)})
