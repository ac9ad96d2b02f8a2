"""Fork client: stands for a program that tests/forkserver.py runs: same streams, same folder, same end.

Started by `forkserver.install` as `python -IS forkclient.py SOCKET WORDS…`, in place of `python WORDS…`: it imports
next to nothing.  Signals are passed on.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    address, *words = sys.argv[1:]
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(address)
    here = os.getcwd()  # noqa: PTH109  # pathlib takes as long to import as all else
    request = {"words": words, "directory": here, "environ": dict(os.environ), "session": False, "login": False}
    request["parent"] = os.getppid()
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    pid = int(server.recv(64))
    for number in PASSED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: os.kill(pid, number))
    code = os.waitstatus_to_exitcode(int(server.recv(64)))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
