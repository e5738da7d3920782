"""Network, mount and pid namespaces of the cluster's own. Their first process, killed, takes all with it.

The kernel kills every process of a pid namespace whose first process ends, and a mount or network namespace goes with
its last process. So nothing has to be cleaned up by name, and a test run that is killed leaves neither daemons, mounts
nor interfaces: the first process dies with the one that started it (unshare --kill-child).
"""

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

# Reaps what is orphaned; ends when its parent closes the pipe.
_FIRST_PROCESS = """
import os, signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
for command in sys.argv[1:]:
    subprocess.run(["sh", "-ec", command], check=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
sys.stdin.read()
"""


class Namespaces:
    """A context: inside it, commands can be run and sockets opened in the namespaces."""

    def __init__(self, preparation: Sequence[str] = ()) -> None:
        """`preparation`: shell commands that run inside before anything else, such as mounts."""
        self._preparation = ["ip link set lo up", *preparation]
        self._holder: subprocess.Popen[str] | None = None
        self._network = -1

    def __enter__(self) -> "Namespaces":
        unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        unshare += ["--propagation", "private", sys.executable, "-c", _FIRST_PROCESS, *self._preparation]
        self._holder = subprocess.Popen(unshare, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self.__exit__(None, None, None)
            raise RuntimeError("the namespaces can't be made: this needs root and the right to mount")
        self._network = os.open(f"/proc/{self._holder.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._network >= 0:
            os.close(self._network)
            self._network = -1
        if self._holder is not None:
            self._holder.kill()  # its child, the first process, gets SIGKILL by the kernel
            self._holder.wait()
            for pipe in (self._holder.stdin, self._holder.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._holder = None

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The same command, to be run from outside, with its process inside."""
        assert self._holder is not None, "not entered"
        pid = self._holder.pid
        enter = ["nsenter", f"--target={pid}", "--mount", "--net", f"--pid=/proc/{pid}/ns/pid_for_children"]
        return [*enter, f"--wd={Path.cwd()}", "--", *arguments]

    def spawn(
        self, arguments: Sequence[str], log: IO[bytes], env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process inside that writes to the log."""
        return subprocess.Popen(
            self.command(arguments), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env
        )

    def connect(self, host: str, port: int, timeout_seconds: float = 30) -> socket.socket:
        """A TCP connection to an address of the inside, usable by this process: a socket belongs where it was made."""
        with self._inside_network():
            return socket.create_connection((host, port), timeout=timeout_seconds)

    @contextlib.contextmanager
    def _inside_network(self) -> Iterator[None]:
        """Moves the calling thread only, and back."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set_namespace(self._network)
            try:
                yield
            finally:
                _set_namespace(own)
        finally:
            os.close(own)


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
