"""A FastAPI application with the pages at /ops/jobs, for those who are in its session.

Run it:   uvicorn --port 8000 examples.web.fastapi_shop:app
Sign in:  POST /login {"name": "ada", "password": "admin"}, or bob ("viewer")
"""

from __future__ import annotations

import hmac
import os
from typing import Annotated

from a2wsgi import WSGIMiddleware
from fastapi import Body, FastAPI, HTTPException, Request
from starlette.middleware.sessions import SessionMiddleware
from werkzeug.wrappers import Request as WebRequest

from kiqcluster.web import Role, User, create_app

PASSWORDS = {"ada": "admin", "bob": "viewer"}
ROLES = {"ada": Role.ADMIN, "bob": Role.VIEW}

app = FastAPI()
app.add_middleware(SessionMiddleware, secret_key=os.environ.get("SHOP_SECRET", "for this example only"))


@app.get("/")
async def home() -> str:
    return "the shop"


@app.post("/login")
async def login(request: Request, name: Annotated[str, Body()], password: Annotated[str, Body()]) -> str:
    if not hmac.compare_digest(PASSWORDS.get(name, ""), password) or name not in PASSWORDS:
        raise HTTPException(401)
    request.session["user"] = name
    return "welcome"


def authorize(asked: WebRequest) -> User | None:
    """Return who is in the session of the shop; a2wsgi passes on its scope."""
    name = asked.environ["asgi.scope"]["session"].get("user")
    return User(name, ROLES[name]) if name in ROLES else None


app.mount("/ops/jobs", WSGIMiddleware(create_app(authorize)))
