"""The client of a mail service: the web server opens none, each worker process opens one."""

from __future__ import annotations


class Mailer:
    """Stands for a library with connections of its own."""

    def __init__(self) -> None:
        self.is_open = True

    async def send(self, mail: str, text: str) -> None:
        assert self.is_open, "it is closed"
        print(f"to {mail}: {text}", flush=True)

    def close(self) -> None:
        self.is_open = False
