"""Servers and sentinels behind locks: TLS with certificates on both sides, made for the test, and passwords."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from kiqcluster.store import Store
from tests.kit import RedisServer, free_port, require, unavailable

__all__ = ["LockedServer", "Locks"]

PASSWORD, SENTINEL_PASSWORD = "p@ss/w:rd %?", "wa&tch=#me"  # with everything in them that means something in an address
DAYS = "2"  # that a certificate holds
FILES = {
    "tls-ca-cert-file": "ca",
    "tls-cert-file": "cert",
    "tls-key-file": "key",
}  # setting of Redis → name of the file
CLIENT_WORDS = {"tls-ca-cert-file": "ca_certs", "tls-cert-file": "certfile", "tls-key-file": "keyfile"}


def openssl(*words: str | Path) -> None:
    subprocess.run([require("openssl", "openssl"), *map(str, words)], check=True, capture_output=True)


def make_certificates(directory: Path) -> None:
    """Make an authority, ca.pem, and what it has signed for servers and clients alike: cert.pem with key.pem."""
    authority, key = ("-CA", directory / "ca.pem"), ("-CAkey", directory / "ca-key.pem")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        *("req", "-x509", *new_key, "-days", DAYS, "-subj", "/CN=authority of a test"),
        *("-addext", "keyUsage=critical,keyCertSign", "-keyout", key[1], "-out", authority[1]),
    )
    openssl(
        *("req", *new_key, "-subj", "/CN=a server or client of a test"),
        *("-keyout", directory / "key.pem", "-out", directory / "request.pem"),
    )
    (directory / "extensions").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    openssl(
        *("x509", "-req", "-in", directory / "request.pem", *authority, *key, "-CAcreateserial", "-days", DAYS),
        *("-extfile", directory / "extensions", "-out", directory / "cert.pem"),
    )


@dataclass(frozen=True, slots=True)
class Locks:
    """What servers and sentinels ask of each other and of clients.

    directory: of the certificates.  program: a server that is built with TLS.
    """

    directory: Path
    program: str
    password: str = PASSWORD
    sentinel_password: str = SENTINEL_PASSWORD

    @classmethod
    def made(cls, directory: Path) -> Locks:
        """Return them, with certificates of their own; skip the test loudly where there is no server with TLS."""
        program = require("redis-server", "redis-server")
        linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        if "libssl" not in linked.stdout:
            unavailable(f"{program} is built without TLS (Debian's has it: apt-get install redis-server)")
        make_certificates(directory)
        return cls(directory, program)

    @property
    def files(self) -> dict[str, str]:
        """Return which file is what, in Redis' words."""
        return {name: str(self.directory / f"{file}.pem") for name, file in FILES.items()}

    @property
    def login(self) -> str:
        return f":{quote(self.password, safe='')}@"

    def query(self, **others: str) -> str:
        """Return the end of an address: whom to believe, and how to identify oneself."""
        files = {f"ssl_{word}": self.files[name] for name, word in CLIENT_WORDS.items()}
        return "?" + urlencode(files | others)


class LockedServer(RedisServer):
    """A server that nobody reaches by its port without a certificate, and nobody at all without the password."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._tls_port = free_port()
        words = {
            "port": "0",
            "tls-port": str(self._tls_port),
            "tls-replication": "yes",
            "requirepass": locks.password,
            "masterauth": locks.password,
            **locks.files,
        }
        settings = [word for name, value in words.items() for word in (f"--{name}", value)]
        super().__init__(durable=True, program=locks.program, settings=settings)

    @property
    def port(self) -> int:
        return self._tls_port

    @property
    def url(self) -> str:
        return f"rediss://{self._locks.login}127.0.0.1:{self._tls_port}/0{self._locks.query()}"

    def store(self, db: int = 0) -> Store:
        return Store(f"unix://{self._locks.login}{self.socket}?db={db}")
