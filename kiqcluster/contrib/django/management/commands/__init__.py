"""Commands of manage.py: kiqcluster, kiqctl."""
