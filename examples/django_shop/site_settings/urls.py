"""Where things are."""

from django.contrib import admin
from django.urls import include, path
from orders.views import place_order

urlpatterns = [
    path("admin/", admin.site.urls),
    path("kiqcluster/", include("kiqcluster.contrib.django.urls")),
    path("orders/", place_order),
]
