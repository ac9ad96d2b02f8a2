"""What Python lacks on Windows, taken away from this process: `import tests.windows` comes first in a program.

An imitation: sys.platform, paths, and what only a real Windows does differently stay those of this system.
"""

from __future__ import annotations

import asyncio  # this and others of the standard library are what they are here, so they come before the gaps
import multiprocessing.connection
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from types import ModuleType

__all__ = ["asyncio", "multiprocessing", "subprocess", "tempfile"]

MODULES = {"_posixsubprocess", "fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
NAMES: dict[ModuleType, str] = {
    os: "fork forkpty getuid geteuid getgid getegid getgroups getpgid getpgrp setsid setpgid killpg nice wait"
    " wait3 wait4 waitid openpty register_at_fork sched_getaffinity sched_setaffinity getloadavg statvfs"
    " sysconf chown fchmod fchown mkfifo pread pwrite sendfile O_NONBLOCK O_NOFOLLOW O_CLOEXEC WNOHANG"
    " memfd_create pipe2 posix_spawn confstr",
    signal: "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGUSR1"
    " SIGUSR2 SIGWINCH pthread_sigmask pthread_kill setitimer getitimer ITIMER_REAL alarm pause sigwait"
    " siginterrupt SIG_BLOCK SIG_SETMASK SIG_UNBLOCK sigtimedwait",
    select: "poll epoll PIPE_BUF POLLIN POLLOUT",
    socket: "AF_UNIX MSG_DONTWAIT SO_REUSEPORT SCM_RIGHTS",
}


class Hider:
    """A finder that denies what is not there on Windows."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


for name in MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hider())
for module, names in NAMES.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
