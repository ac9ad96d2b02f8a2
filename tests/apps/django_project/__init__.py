"""A Django project for tests: its settings are in `settings`, its jobs in the application `shop`."""
