"""The reader: the process that opens tenants' files and looks at /proc, and does nothing else.

It answers one request at a time over two pipes and gives up everything it doesn't need for that (confine.py): as
root without capabilities it may enter the pods' folders, but a mistake in handling a tenant's bytes yields no
network, no other program and no way to write.
"""

import logging
from pathlib import Path
from typing import BinaryIO

from monitor import processes, tenantfiles
from monitor.messages import (
    MAX_LINE_BYTES,
    Holding,
    Ledger,
    RegionState,
    Scan,
    decode_request,
    encode_scan,
)
from monitor.region import KINDS, BadRegionError

log = logging.getLogger(__name__)


def scan(kubelet_root: Path, proc: Path, pids: list[int], by_mount: bool) -> Scan:
    """Look at every pod's region and quota files, and find out where the processes belong. Never raises OSError."""
    errors: dict[str, tuple[int, str]] = {}
    try:
        uids = tenantfiles.pod_uids(kubelet_root)
    except OSError as e:
        uids = []
        errors["regions"] = 1, f"{e.filename}: {e.strerror}"
    regions: list[RegionState] = []
    quotas: dict[str, dict[str, str]] = {}
    for uid in uids:
        containers = tenantfiles.container_names(kubelet_root, uid)
        regions += (_look(kubelet_root, uid, container) for container in containers)
        if containers and (quota := tenantfiles.read_quota(kubelet_root, uid)):
            quotas[uid] = quota
    mounts = _mounts(kubelet_root, regions) if by_mount and pids else None
    holdings: dict[int, Holding] = {}
    failed = 0
    message = ""
    for pid in pids:
        try:
            holder = processes.find_holder(pid, proc, mounts)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        except OSError as e:
            failed += 1
            message = f"{e.filename or proc / str(pid)}: {e.strerror}"
            continue
        if holder:
            holdings[pid] = Holding(pid, holder.pod_uid, holder.container_id, holder.container)
    if not (proc / "self").is_symlink():
        failed, message = failed + 1, f"{proc} is no proc filesystem"
    if failed:
        errors["proc"] = failed, message
    return Scan(frozenset(uids), tuple(regions), quotas, holdings, errors)


def _look(kubelet_root: Path, uid: str, container: str) -> RegionState:
    try:
        reading = tenantfiles.read_region(kubelet_root, uid, container)
    except BadRegionError as e:
        return RegionState(uid, container, e.reason, 0, ())
    except Exception:
        # A mistake of ours in judging a tenant's bytes costs that tenant's series and nobody else's.
        log.exception("pod %s, container %s: region", uid, container)
        return RegionState(uid, container, "fault", 0, ())
    if reading is None:
        return RegionState(uid, container, "absent", 0, ())
    ledgers = tuple(
        Ledger(
            uuid=device.uuid,
            physical=device.physical,
            limit=-1 if device.limit is None else device.limit,
            source=device.source,
            unbelieved=device.unbelieved,
            refusals=device.refusals,
            refused_largest=device.refused_largest,
            refused_last_ns=device.refused_last_ns,
            context=reading.used[i * KINDS],
            module=reading.used[i * KINDS + 1],
            buffer=reading.used[i * KINDS + 2],
            peak=device.peak,
            launches=reading.launches[i],
        )
        for i, device in enumerate(reading.devices)
    )
    return RegionState(uid, container, "", reading.processes, ledgers)


def _mounts(kubelet_root: Path, regions: list[RegionState]) -> dict[tuple[str, str], tuple[str, str]]:
    mounts: dict[tuple[str, str], tuple[str, str]] = {}
    ambiguous = set()
    kubelet_root = kubelet_root.resolve()
    for state in regions:
        owner = state.pod_uid, state.container
        for key in processes.mount_keys(kubelet_root, *owner):
            if mounts.setdefault(key, owner) != owner:
                ambiguous.add(key)
    return {key: owner for key, owner in mounts.items() if key not in ambiguous}


def serve(requests: BinaryIO, answers: BinaryIO, kubelet_root: Path, proc: Path, by_mount: bool) -> None:
    """Answer requests until the exporter closes its end."""
    while line := requests.readline(MAX_LINE_BYTES):
        number, pids = decode_request(line)
        answer = encode_scan(number, scan(kubelet_root, proc, pids, by_mount))
        if len(answer) > MAX_LINE_BYTES:
            empty = Scan(frozenset(), (), {}, {}, {"regions": (1, "the answer would be too long")})
            answer = encode_scan(number, empty)
        try:
            answers.write(answer)
            answers.flush()
        except BrokenPipeError:
            return
