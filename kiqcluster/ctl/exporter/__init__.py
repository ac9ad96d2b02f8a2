"""kiqctl exporter: gauges of what lies in Redis, for Prometheus.

exporter    the HTTP server
gauges      what is read, and as which series
guarantees  the same of strikes, dropped jobs, suspects and rate limits
batches     the same of batches that have not ended
"""
