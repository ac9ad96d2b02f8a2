"""Attributes: what an object of this layer answers to the name of an attribute that it does not have."""

from __future__ import annotations

from typing import Any

__all__ = ["RefusesAttributes"]


class RefusesAttributes:
    """Refuses attributes of Celery that have no effect here, and lacks those whose names begin with "_".

    Libraries look for private names on any object: unittest.mock, asyncio, copy, pytest.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return self._missing(name)

    def _missing(self, name: str) -> Any:
        """Return the attribute, or raise Unsupported, which names its counterpart."""
        raise NotImplementedError
