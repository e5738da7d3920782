"""Where a node lets files be placed that containers may execute: one preset per kind of node, each explained."""

from dataclasses import dataclass

from libsync.names import DEFAULT_BASE


@dataclass(frozen=True)
class Preset:
    """A node's base directory, the SELinux type that lets containers map files there, and why it is so."""

    base: str
    selinux_type: str
    why: str


PRESETS = {
    "ordinary": Preset(
        base=DEFAULT_BASE,
        selinux_type="container_file_t",
        why="Debian, Ubuntu, RHEL, SUSE, Amazon Linux: /var is writable and may be executed from.",
    ),
    "openshift": Preset(
        base=DEFAULT_BASE,
        selinux_type="container_file_t",
        why="OpenShift on RHEL CoreOS: /usr is read-only, /var may be executed from; SELinux always enforces, "
        "so libsync needs an SCC that allows hostPath volumes and the type spc_t (the chart brings one).",
    ),
    "gke-cos": Preset(
        base="/home/kubernetes/bin/kai-resource-isolator",
        selinux_type="container_file_t",
        why="GKE's Container-Optimized OS: / is read-only, /var and /home are noexec; "
        "/home/kubernetes/bin is mounted again with exec (the GPU driver lives there as well).",
    ),
    "bottlerocket": Preset(
        base=DEFAULT_BASE,
        selinux_type="data_t",
        why="Bottlerocket: / is read-only, /var may be executed from; SELinux always enforces, "
        "and containers execute what is labelled data_t.",
    ),
    "talos": Preset(
        base=DEFAULT_BASE,
        selinux_type="container_file_t",
        why="Talos: only /var is writable. Machine configurations made since 1.14 mount it noexec: "
        "set `mount: {secure: false}` in the VolumeConfig named EPHEMERAL.",
    ),
}
