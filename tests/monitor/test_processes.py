"""A process is matched to its container by what the kernel says of it, whatever the node's cgroup layout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monitor import processes
from monitor.processes import Holder, find_holder, from_cgroup, region_mount

POD = "0f1e2d3c-1111-4222-8333-444455556666"
UNDERSCORED = POD.replace("-", "_")
CID = "ab" * 32
OTHER = "99999999-1111-4222-8333-444455556666"


@pytest.mark.parametrize(
    "text",
    [
        f"11:memory:/kubepods/burstable/pod{POD}/{CID}\n1:name=systemd:/kubepods/burstable/pod{POD}/{CID}\n",
        f"4:memory:/k8s-i3/kubepods/pod{POD}/{CID}\n0::/\n",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{CID}.scope\n",
        f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{CID}.scope\n",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{CID}.scope\n",
        f"0::/../../kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{CID}.scope\n",
        f"0::/../../pod{POD}/{CID}\n",
        f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{CID}.scope/own/groups\n",
    ],
    ids=["v1", "v1-root", "v2-systemd", "crio", "kind", "v2-seen-from-inside", "v2-cgroupfs-inside", "own-groups"],
)
def test_pod_and_container_are_found_in_every_layout(text: str) -> None:
    assert from_cgroup(text) == (POD, CID)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/\n",
        "0::/system.slice/ssh.service\n",
        f"0::/docker/{CID}\n",
        f"0::/user.slice/pod{POD}/{CID}\n",
        "junk\n:::\n",
    ],
)
def test_a_process_outside_of_pods_is_in_none(text: str) -> None:
    assert from_cgroup(text) is None


def test_groups_that_a_container_makes_below_its_own_dont_count() -> None:
    """A container with a writable cgroup could name a group like another pod's."""
    forged = f"0::/kubepods/pod{POD}/{CID}/kubepods/pod{OTHER}/{'cd' * 32}\n"
    assert from_cgroup(forged) == (POD, CID)


def test_a_static_pod_goes_by_its_hash() -> None:
    assert from_cgroup(f"0::/kubepods/pod{'0a' * 16}/{CID}\n") == ("0a" * 16, CID)


def test_the_uppermost_mount_at_the_regions_place_counts() -> None:
    text = (
        "30 1 0:50 / / rw - overlay overlay rw\n"
        "31 30 0:61 /main /run/vgpu rw,nosuid - tmpfs tmpfs rw\n"
        "32 30 0:62 /other /run/vgpu rw,nosuid - tmpfs tmpfs rw\n"
        "33 30 0:63 / /run/vgpu/deeper rw - tmpfs tmpfs rw\n"
        "bad line\n"
    )
    assert region_mount(text) == ("0:62", "/other")
    assert region_mount("30 1 0:50 / / rw - overlay overlay rw\n") is None


def test_a_region_on_a_disk_or_on_a_tmpfs_can_be_told_from_others(tmp_path: Path) -> None:
    folder = tmp_path / "pods" / POD / "volumes" / "kubernetes.io~empty-dir" / "vgpu-region" / "main"
    folder.mkdir(parents=True)
    device = folder.stat().st_dev
    keys = processes.mount_keys(tmp_path.resolve(), POD, "main")
    number = f"{os.major(device)}:{os.minor(device)}"
    assert (number, "/main") in keys
    assert (number, str(folder.resolve())) in keys
    assert all(where == number and path.endswith("/main") for where, path in keys)
    assert processes.mount_keys(tmp_path.resolve(), OTHER, "main") == []


def proc_tree(root: Path, pid: int, cgroup: str, mountinfo: str = "") -> None:
    (root / str(pid)).mkdir(parents=True)
    (root / str(pid) / "cgroup").write_text(cgroup)
    (root / str(pid) / "mountinfo").write_text(mountinfo)


def test_the_control_group_comes_first_and_mounts_only_if_asked(tmp_path: Path) -> None:
    mount = "31 30 0:61 /main /run/vgpu rw - tmpfs tmpfs rw\n"
    proc_tree(tmp_path, 5, f"0::/kubepods/pod{POD}/{CID}\n", mount)
    proc_tree(tmp_path, 6, "0::/\n", mount)
    mounts = {("0:61", "/main"): (OTHER, "main")}
    assert find_holder(5, tmp_path, mounts) == Holder(5, POD, container_id=CID)
    assert find_holder(6, tmp_path, mounts) == Holder(6, OTHER, container="main")
    assert find_holder(6, tmp_path, None) is None
    with pytest.raises(FileNotFoundError):
        find_holder(7, tmp_path, mounts)


def test_a_real_process_is_found_by_what_it_has_mounted(tmp_path: Path) -> None:
    """A process in a mount namespace of its own, with the region's folder at /run/vgpu, as a runtime leaves it."""
    folder = tmp_path / "pods" / POD / "volumes" / "kubernetes.io~empty-dir" / "vgpu-region" / "main"
    folder.mkdir(parents=True)
    script = f"mount -t tmpfs t /run && mkdir /run/vgpu && mount --bind {folder} /run/vgpu && echo ready && exec cat"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        mounts = dict.fromkeys(processes.mount_keys(tmp_path.resolve(), POD, "main"), (POD, "main"))
        try:
            if ready:
                assert find_holder(process.pid, Path("/proc"), mounts) == Holder(process.pid, POD, container="main")
            else:
                sys.stdout.write("no namespaces for this user here: only the kernel's texts above were tested\n")
        finally:
            process.communicate("")
