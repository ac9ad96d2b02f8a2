"""The admin, and the pages of kiqcluster."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("ops/jobs/", include("kiqcluster.contrib.django.urls"))]
