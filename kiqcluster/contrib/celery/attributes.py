"""Attributes: what an object of this layer answers to the name of an attribute that it does not have."""

from __future__ import annotations

from typing import Any

from kiqcluster.contrib.celery.errors import Unsupported, UnsupportedAttribute

__all__ = ["RefusesAttributes"]


class RefusesAttributes:
    """Refuses attributes of Celery that have no effect here, and lacks those whose names begin with "_".

    Libraries look for private names on any object: unittest.mock, asyncio, copy, pytest.  Others ask for public ones,
    such as `to_json`: for hasattr and getattr with a default, a refused attribute is absent.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        try:
            return self._missing(name)
        except Unsupported as error:
            raise UnsupportedAttribute(str(error)) from None

    def _missing(self, name: str) -> Any:
        """Return the attribute, or raise Unsupported, which names its counterpart."""
        raise NotImplementedError
