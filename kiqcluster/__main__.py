"""The entry of the command, for `kiqcluster` and `python -m kiqcluster`.

Refuses a platform without fork() before it imports what needs that.  Puts site hooks off that have started threads.
"""

import os
import sys

from kiqcluster.errors import ExitCode

__all__ = ["main"]


def main() -> None:
    """Run the command; leave with one of the codes of errors.ExitCode."""
    if not hasattr(os, "fork"):
        sys.stderr.write(
            "kiqcluster: workers run on Linux and macOS only, for this system has no fork(); run them in WSL or in a "
            "container. Jobs can be enqueued and tested here.\n"
        )
        raise SystemExit(ExitCode.USAGE)
    from kiqcluster.ipc.site_hooks import put_off

    put_off()
    from kiqcluster.cli import main as run

    run()


if __name__ == "__main__":
    main()
