"""Glue to other libraries; each module needs an extra of its name."""
