"""A shop in Django: `cd examples/django_shop`, then README.md."""
