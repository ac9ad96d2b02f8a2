"""A small shop: an order is kept in SQLite, and a job sends its receipt.

Web server:  flask --app shop run
Workers:     flask --app shop kiqcluster
Tests:       pytest
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from flask import Flask

from kiqcluster.contrib.flask import KiqCluster
from shop import database, orders

kiq = KiqCluster()


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    """Make the application; web server, workers and tests call this."""
    app = Flask(__name__)
    app.config["DATABASE"] = os.environ.get("SHOP_DATABASE", "shop.sqlite3")
    app.config["KIQCLUSTER_MAX_RETRIES"] = 10
    app.config.from_mapping(config or {})
    kiq.init_app(app)
    database.init_app(app)
    app.register_blueprint(orders.blueprint)
    return app
