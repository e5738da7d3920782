"""What a container runtime does for one process: runs as a program of its own, between the runner and the container.

`python -m e2e.onebox.sandbox SPEC_FD STATUS_FD` reads a Spec as JSON. It writes the process's pid as the host knows it
to the status, and an error if there is one; a status that ends after the pid means that the command was started.
It lives as long as the command, ends as that ended, and takes it along when it is killed.
"""

import errno
import json
import os
import shutil
import signal
import socket
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from e2e.onebox import linux

# What container runtimes leave to a container's root user, by number (capability.h).
DEFAULT_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# The host's programs and libraries are the image; what hangs off / by symbolic link is made again as a link.
IMAGE_DIRECTORIES = ("usr", "bin", "sbin", "lib", "lib64", "lib32")
STATUS_NOT_STARTED = 127


@dataclass(frozen=True)
class Mount:
    """One bind mount of the container; target is an absolute path in it."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True)
class Spec:
    """One process in a container: of a new one, or (join) of one that runs already."""

    argv: list[str]
    env: dict[str, str]
    node_pid: int  # process whose mount (and user) namespace the node's volumes live in
    cwd: str = "/"
    uid: int = 0
    gid: int = 0
    groups: list[int] = field(default_factory=list)
    join: int = 0  # host pid of the container's first process, 0 for a new container
    hostname: str = "onebox"
    root: str = ""  # an empty directory of the host
    etc: str = ""  # directory that /etc starts from
    mounts: list[Mount] = field(default_factory=list)
    read_only_root: bool = False
    privileged: bool = False
    no_new_privileges: bool = False

    def to_json(self) -> str:
        """As the program reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Spec":
        """The reverse of to_json."""
        fields = json.loads(text)
        return cls(**(fields | {"mounts": [Mount(**mount) for mount in fields["mounts"]]}))


def build_root(spec: Spec) -> None:
    """Put the container's file system together below spec.root and make it the root."""
    root = Path(spec.root)
    linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755")
    holes = [Path(mount.target) for mount in spec.mounts]
    for name in IMAGE_DIRECTORIES:
        _show(Path("/") / name, root, holes)
    for name in ("dev", "proc", "root", "run", "var", "home", "mnt", "srv", "opt"):
        (root / name).mkdir(exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).mkdir()
        (root / name).chmod(0o1777)
    (root / "var" / "run").symlink_to("/run")
    shutil.copytree(spec.etc, root / "etc", symlinks=True)
    (root / "etc" / "hostname").write_text(spec.hostname + "\n")
    _make_devices(root / "dev")
    linux.mount("proc", root / "proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    for mount in sorted(spec.mounts, key=lambda mount: len(Path(mount.target).parts)):
        target = root / Path(mount.target).relative_to("/")
        source = Path(mount.source)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        linux.bind(source, target, mount.read_only)
    linux.enter_root(root)
    if spec.read_only_root:
        flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
        linux.mount(None, Path("/"), None, flags)


def _show(path: Path, root: Path, holes: list[Path]) -> None:
    """Show a path of the host read-only at the same place; directories above a mount's target are made anew."""
    target = root / path.relative_to("/")
    if path.is_symlink():
        target.symlink_to(path.readlink())
    elif path.is_dir() and any(path in hole.parents for hole in holes):
        target.mkdir()
        for child in path.iterdir():
            _show(child, root, holes)
    elif path in holes or not path.exists():
        return
    elif path.is_dir() or path.is_file():
        if path.is_dir():
            target.mkdir()
        else:
            target.touch()
        linux.bind(path, target, read_only=True)


def _make_devices(directory: Path) -> None:
    linux.mount("tmpfs", directory, "tmpfs", linux.MS_NOSUID, "mode=755,size=64k")
    for name in (one for one in DEVICES if Path("/dev", one).exists()):
        (directory / name).touch()
        linux.bind_device(Path("/dev") / name, directory / name)
    (directory / "shm").mkdir()
    linux.mount("tmpfs", directory / "shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777,size=64m")
    for name, link in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (directory / name).symlink_to(link if name == "fd" else f"/proc/self/{link}")


def become(spec: Spec) -> None:
    """Give up what a container's process doesn't have."""
    if not spec.privileged:
        for capability in range(int(linux.LAST_CAPABILITY.read_text()) + 1):
            if capability not in DEFAULT_CAPABILITIES:
                linux.prctl(linux.PR_CAPBSET_DROP, capability)
    if spec.no_new_privileges:
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    try:
        if Path("/proc/self/setgroups").read_text().strip() != "deny":
            os.setgroups(spec.groups)
        os.setresgid(spec.gid, spec.gid, spec.gid)
        os.setresuid(spec.uid, spec.uid, spec.uid)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the id isn't mapped in this user namespace
            raise
        _become_in_name(spec.uid, spec.gid)
    linux.die_with_parent()  # a change of uid had taken it away


def _become_in_name(uid: int, gid: int) -> None:
    """Where a user has but one id to give: a user namespace in which that one is called as the pod wants it."""
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} 0 1")
    Path("/proc/self/gid_map").write_text(f"{gid} 0 1")


def run(spec: Spec, status: int) -> int:
    """Start the command where the spec wants it, wait for it, and return its wait status."""
    linux.die_with_parent()
    if not linux.same_namespace(spec.node_pid, "user"):
        linux.join(spec.node_pid, ("user",))
    if spec.join:
        linux.join(spec.join, ("ipc", "uts", "pid", "mnt"))
    else:
        linux.join(spec.node_pid, ("mnt",))
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS)
    started, start = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(start)
        os.read(started, 1)  # the pid is told before anything else is
        _start(spec, status)
    os.write(status, f"{child}\n".encode())
    os.close(status)
    os.close(start)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the command, which the runner reaches by its own pid
    return os.waitpid(child, 0)[1]


def _start(spec: Spec, status: int) -> None:
    """In the child: never returns."""
    try:
        os.setsid()
        if not spec.join:
            build_root(spec)
            socket.sethostname(spec.hostname)
        become(spec)
        os.umask(0o022)
        os.chdir(spec.cwd)
        os.execvpe(spec.argv[0], spec.argv, spec.env)  # noqa: S606 — the command as the pod names it
    except (OSError, shutil.Error) as error:
        os.write(status, str(error).encode())
    os._exit(STATUS_NOT_STARTED)


def main() -> int:
    """Entry of the program."""
    spec_fd, status = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(status, False)
    with os.fdopen(spec_fd) as file:
        spec = Spec.from_json(file.read())
    try:
        wait_status = run(spec, status)
    except OSError as error:
        os.write(status, f"0\n{error}".encode())
        return STATUS_NOT_STARTED
    if os.WIFSIGNALED(wait_status):
        return 128 + os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status)


if __name__ == "__main__":
    sys.exit(main())
