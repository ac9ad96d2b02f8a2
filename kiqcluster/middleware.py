"""Middleware: the class of `client_middleware` and `server_middleware`, for annotations of applications."""

from kiqcluster.process.middleware import Chain

__all__ = ["Chain"]
