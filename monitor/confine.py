"""Gives up, for good, what the reader doesn't need: capabilities, new privileges, sockets and other programs.

Linux only has numbers for this; they are the kernel's and never change. Each step raises OSError where the kernel
refuses it.
"""

import ctypes
import errno
import os
import platform
import struct

PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
CAP_LAST = 63

# System calls that the reader never makes: new connections, other programs and processes, signals to them (root's own
# are all over the node), changes to files or mounts. A list of what is allowed would have to follow every release of
# Python and libc.
FORBIDDEN = {
    "x86_64": {
        "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "socketpair": 53, "clone": 56, "fork": 57,
        "vfork": 58, "execve": 59, "kill": 62, "truncate": 76, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85,
        "link": 86, "unlink": 87, "symlink": 88, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94,
        "ptrace": 101, "rt_sigqueueinfo": 129, "mknod": 133, "setpriority": 141, "chroot": 161, "mount": 165,
        "umount2": 166, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "tkill": 200, "tgkill": 234,
        "ioprio_set": 251, "mkdirat": 258, "mknodat": 259, "fchownat": 260, "unlinkat": 263, "renameat": 264,
        "linkat": 265, "symlinkat": 266, "fchmodat": 268, "unshare": 272, "accept4": 288, "rt_tgsigqueueinfo": 297,
        "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "renameat2": 316, "bpf": 321, "execveat": 322,
        "userfaultfd": 323, "pidfd_send_signal": 424, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429,
        "pidfd_open": 434, "clone3": 435, "openat2": 437, "pidfd_getfd": 438, "fchmodat2": 452,
    },
    "aarch64": {
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "ioprio_set": 30, "mknodat": 33, "mkdirat": 34, "unlinkat": 35,
        "symlinkat": 36, "linkat": 37, "renameat": 38, "umount2": 39, "mount": 40, "truncate": 45, "chroot": 51,
        "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "unshare": 97, "ptrace": 117, "kill": 129,
        "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "setpriority": 140, "socket": 198, "socketpair": 199,
        "bind": 200, "listen": 201, "accept": 202, "connect": 203, "clone": 220, "execve": 221,
        "rt_tgsigqueueinfo": 240, "accept4": 242, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
        "renameat2": 276, "bpf": 280, "execveat": 281, "userfaultfd": 282, "pidfd_send_signal": 424,
        "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "pidfd_open": 434, "clone3": 435, "openat2": 437,
        "pidfd_getfd": 438, "fchmodat2": 452,
    },
}  # fmt: skip
# Opening is allowed for reading only: the call, and which of its arguments has the flags.
OPENING = {"x86_64": {2: 1, 257: 2}, "aarch64": {56: 2}}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# BPF: load a word of struct seccomp_data, jump if equal / at least / any bit set, return
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCH_AT, ARGUMENTS_AT = 0, 4, 16
ALLOW, DENY = 0x7FFF0000, 0x00050000 | errno.EPERM
X32 = 0x40000000  # the other numbering of system calls on x86_64


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _prctl(option: int, *arguments: int | ctypes.c_void_p) -> None:
    padded = [a if isinstance(a, ctypes.c_void_p) else ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    _call("prctl", option, *padded)


def drop_capabilities() -> None:
    """Empty all capability sets. Root stays the owner of root's files, and nothing more."""
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(CAP_LAST + 1):
        try:
            _prctl(PR_CAPBSET_DROP, capability)
        except OSError as e:
            if e.errno not in (errno.EINVAL, errno.EPERM):  # no such capability; not ours to take from the bounding set
                raise
    header = ctypes.create_string_buffer(struct.pack("=Ii", CAPABILITY_VERSION_3, 0), 8)
    _call("capset", header, ctypes.create_string_buffer(24))


def forbid_new_privileges() -> None:
    """Make set-user-id programs and file capabilities mean nothing to this process."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def call_filter(machine: str) -> list[tuple[int, int, int, int]]:
    """The program that judges each system call: (operation, steps to skip if true, if false, operand)."""
    program = [
        (LOAD, 0, 0, ARCH_AT),
        (EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, DENY),
        (LOAD, 0, 0, NUMBER_AT),
        (AT_LEAST, 0, 1, X32),
        (RETURN, 0, 0, DENY),
    ]
    for number in FORBIDDEN[machine].values():
        program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, DENY)]
    for number, argument in OPENING[machine].items():
        program += [
            (EQUAL, 0, 4, number),
            (LOAD, 0, 0, ARGUMENTS_AT + 8 * argument),
            (ANY_BIT, 0, 1, WRITING),
            (RETURN, 0, 0, DENY),
            (RETURN, 0, 0, ALLOW),
        ]
    return [*program, (RETURN, 0, 0, ALLOW)]


def forbid_calls() -> None:
    """Let every system call of FORBIDDEN, and opening a file for writing, fail with EPERM from now on."""
    program = call_filter(platform.machine())
    code = b"".join(struct.pack("=HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(program), ctypes.addressof(buffer)), 16)
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.cast(head, ctypes.c_void_p))
