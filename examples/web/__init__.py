"""kiqcluster's pages inside of applications that have users of their own; docs/web.md explains each.

flask_shop     beside a Flask application, in its session
django_shop    a view of Django, with its users and groups
fastapi_shop   mounted in FastAPI, in its session
"""
