"""The check of this example (examples/README.md): the demonstration, which ends by itself without a terminal."""

from __future__ import annotations

from examples.demo import main

if __name__ == "__main__":
    raise SystemExit(main())
