"""Integrations with other libraries; each module needs an extra of its name.

otel   OpenTelemetry: a span for each push and each run
"""
