"""Privileges and volumes with which a container can get round a limit that lives in its own process."""

import posixpath

from webhook import names
from webhook.conflicts import covered
from webhook.pod import Object, Pod, mapping, text
from webhook.share import Share, shown

_CAPABILITIES = ("ALL", "SYS_ADMIN", "SYS_PTRACE", "SYS_CHROOT")


def find(pod: Pod, share: Share, library_base: str) -> list[str]:
    """Return what the target container or its pod has of them, in words for a message."""
    found = []
    security = share.target.security
    if security.get("privileged") is True:
        found.append("privileged mode")
    added = mapping(security, "capabilities", f"{share.target.where}.securityContext").get("add")
    for capability in added if isinstance(added, list) else []:
        name = str(capability).upper().removeprefix("CAP_")
        if name in _CAPABILITIES:
            found.append(f"capability {name}")
    if pod.spec.get("hostPID") is True:
        found.append("hostPID")
    # What lies in a volume can be removed by another container that mounts the volume too, and the mount on it goes
    # with it. A region that went is noticed by the library, which then grants nothing.
    found += [
        f"a writable volume {shown(text(mount, 'name', share.target.where))} over {path}"
        for mount in share.target.mounts
        if (path := covered(mount)) and path != names.REGION_DIR
    ]
    mounted = {mount.get("name") for mount in share.target.mounts if mount.get("readOnly") is not True}
    found += [
        f"a writable hostPath volume {shown(str(volume['name']))} over the node's library"
        for volume in pod.volumes.values()
        if volume.get("name") in mounted and _reaches_library(volume, library_base)
    ]
    return found


def _reaches_library(volume: Object, library_base: str) -> bool:
    host = volume.get("hostPath")
    path = host.get("path") if isinstance(host, dict) else None
    if not isinstance(path, str) or volume.get("name") in (names.LIBRARY_VOLUME, names.PRELOAD_VOLUME):
        return False
    path = posixpath.normpath("/" + path.lstrip("/"))
    return (
        path == library_base or library_base.startswith(path.rstrip("/") + "/") or path.startswith(library_base + "/")
    )
