"""URLs: the web pages, for `path("kiqcluster/", include("kiqcluster.contrib.django.urls"))`."""

from __future__ import annotations

from django.urls import re_path

from kiqcluster.contrib.django.views import pages

__all__ = ["app_name", "urlpatterns"]

app_name = "kiqcluster"
urlpatterns = [re_path(r"^(?P<path>.*)$", pages, name="pages")]
