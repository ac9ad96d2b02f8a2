"""Jobs whose queues, classes and tags have names in every script and with every sign that a name may hold."""

from __future__ import annotations

from kiqcluster import job

NAMES = (
    "队列",
    "очередь",
    "ナイーブ:é",
    "e\u0301",  # a combining character
    "שלום",
    "emoji😀",
    "it's",
    'say"so"',
    "back\\slash",
    "a:b::c:",
    "a/b#c?d&e",
    "100%|$HOME;`x`",
    "<b>&amp;</b>",
    "{x}[y](z)",
    "--help",
    "@~+!^",
    "x" * 1_000,
)


def declare(name: str) -> None:
    @job(name=name, queue=name, tags=[name, f"{name} with spaces"])
    def note(value: str) -> None:
        print(f"ran {value}", flush=True)


for name in NAMES:
    declare(name)
