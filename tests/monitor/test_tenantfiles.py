"""Whatever a tenant puts in place of its region: the reader says what is wrong with it and goes on."""

import fcntl
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor import region, tenantfiles
from monitor.region import BadRegionError
from tests.monitor.tree import MIB, Node, WrittenDevice, WrittenSlot, hold_slot, region_bytes, uid


def read(node: Node) -> tenantfiles.Reading | None:
    return tenantfiles.read_region(node.root, uid(1), "main")


def problem(node: Node) -> str:
    with pytest.raises(BadRegionError) as caught:
        read(node)
    return caught.value.reason


def place(node: Node) -> Path:
    folder = node.volume(uid(1)) / "main"
    folder.mkdir()
    return folder / "region"


def open_files() -> set[str]:
    return {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.exists()}


def test_a_region_is_read_with_its_living_processes_only(node: Node) -> None:
    slots = {0: WrittenSlot([(MIB, 0, 5 * MIB)], [1]), 7: WrittenSlot([(MIB, 2 * MIB, 0)], [2])}
    path = node.region(uid(1), [WrittenDevice()], slots)
    reading = read(node)
    assert reading is not None
    assert (reading.processes, reading.used, reading.launches) == (2, [2 * MIB, 2 * MIB, 5 * MIB], [3])
    node.close()
    node.held.append(hold_slot(path, 7))
    reading = read(node)
    assert reading is not None
    assert (reading.processes, reading.used) == (1, [MIB, 2 * MIB, 0]), "a dead process's bytes count"


def test_no_region_is_none(node: Node) -> None:
    assert read(node) is None
    node.volume(uid(1))
    assert read(node) is None


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda path: path.symlink_to("/etc/shadow"), "kind"),
        (lambda path: path.mkdir(), "kind"),
        (os.mkfifo, "kind"),
        (make_socket, "kind"),
        (lambda path: path.write_bytes(b""), "size"),
        (lambda path: path.write_bytes(b"\0" * 100), "size"),
        (lambda path: path.write_bytes(b"\xff" * region.REGION_BYTES), "magic"),
        (lambda path: path.write_bytes(b"\0" * region.REGION_BYTES), "unfinished"),
    ],
    ids=["link", "directory", "fifo", "socket", "empty", "short", "garbage", "zeroes"],
)
def test_anything_else_is_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], word: str
) -> None:
    path = place(node)
    monkeypatch.chdir(path.parent)
    make(Path("region") if word == "kind" else path)
    assert problem(node) == word


def test_a_sparse_file_of_a_tebibyte_is_refused_by_its_size(node: Node) -> None:
    path = place(node)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert problem(node) == "size"


def test_a_device_node_is_never_opened(node: Node) -> None:
    """Opening a device runs its driver: a first look by O_PATH keeps that from happening."""
    path = place(node)
    try:
        os.mknod(path, 0o20666, os.makedev(1, 3))
    except PermissionError:
        path.symlink_to("/dev/null")  # where device nodes can't be made, a link is as near as one gets
    assert problem(node) == "kind"


def test_a_linked_folder_is_not_followed(node: Node, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "region").write_bytes(region_bytes([WrittenDevice()]))
    (node.volume(uid(1)) / "main").symlink_to(tmp_path / "elsewhere")
    assert problem(node) == "link"
    assert tenantfiles.container_names(node.root, uid(1)) == []


def test_a_file_cut_while_it_is_read_is_refused(node: Node) -> None:
    """A thread truncates and restores the file all the time: every look gives a reading or a reason, none a signal."""
    path = node.region(uid(1), [WrittenDevice()], {0: WrittenSlot([(MIB, 0, 0)])})
    whole = path.read_bytes()
    done = threading.Event()

    def cut() -> None:
        with path.open("r+b", buffering=0) as file:
            while not done.is_set():
                file.truncate(300)
                os.pwrite(file.fileno(), whole, 0)

    thread = threading.Thread(target=cut)
    thread.start()
    words = set()
    try:
        for _ in range(300):
            try:
                assert read(node) is not None
            except BadRegionError as e:
                words.add(e.reason)
    finally:
        done.set()
        thread.join()
    assert words <= {"size", "truncated", "magic", "unfinished", "layout", "uuid"}


def test_stray_files_are_never_listed(node: Node) -> None:
    """A tenant's folder is opened by name only, so what else lies there, 100,000 files here, costs nothing."""
    path = node.region(uid(1), [WrittenDevice()])
    target = path.parent / "stray"
    target.touch()
    for i in range(100_000):
        os.link(target, f"{target}-{i}") if i % 30_000 else (target := path.parent / f"stray-{i}").touch()
    calls = []
    original = os.scandir

    class Counting:
        def __call__(self, path: object) -> object:
            calls.append(path)
            return original(path)  # type: ignore[call-overload]

    os.scandir = Counting()  # type: ignore[assignment]
    try:
        assert tenantfiles.container_names(node.root, uid(1)) == ["main"]
        assert read(node) is not None
    finally:
        os.scandir = original
    assert len(calls) == 1, "only the volume itself, which tenants can't write, is listed"


def test_the_number_of_containers_is_bounded(node: Node) -> None:
    for i in range(300):
        (node.volume(uid(1)) / f"c{i}").mkdir()
    assert len(tenantfiles.container_names(node.root, uid(1))) <= tenantfiles.MAX_CONTAINERS


def test_no_file_stays_open(node: Node) -> None:
    """One that did would keep the pod's volume mounted and the pod undeletable."""
    path = node.region(uid(1), [WrittenDevice()], {0: WrittenSlot([(1, 1, 1)])}, alive=False)
    node.quota(uid(1), limit="4147m")
    before = open_files()
    read(node)
    tenantfiles.read_quota(node.root, uid(1))
    path.write_bytes(b"bad")
    problem(node)
    path.unlink()
    read(node)
    assert open_files() == before


def test_all_slots_of_a_full_region_are_found(node: Node) -> None:
    path = node.region(uid(1), [WrittenDevice()], {i: WrittenSlot([(0, 0, 1)]) for i in range(1024)}, alive=False)
    node.held.append(hold_slot(path, 0, 1024))
    reading = read(node)
    assert reading is not None
    assert (reading.processes, reading.used) == (1024, [0, 0, 1024])


def test_living_slots_are_found_whatever_the_order_of_their_locks(node: Node) -> None:
    path = node.region(uid(1), [WrittenDevice()], {})
    wanted = [1023, 0, 512, 511, 3, 77]
    node.held += [hold_slot(path, index) for index in wanted]
    fd = os.open(path, os.O_RDONLY)
    try:
        assert tenantfiles.living_slots(fd) == sorted(wanted)
    finally:
        os.close(fd)


def test_too_many_locks_to_ask_about_charge_every_slot(node: Node) -> None:
    """Somebody may hold locks by the million to make asking slow: undecided slots count, none is lost."""
    path = node.region(
        uid(1), [WrittenDevice()], {0: WrittenSlot([(0, 0, 1)]), 9: WrittenSlot([(0, 0, 2)])}, alive=False
    )
    fd = os.open(path, os.O_RDWR)
    try:
        assert tenantfiles.living_slots(fd, seconds=-1) == list(range(1024))
        for i in range(0, 4000, 2):
            lock = tenantfiles.FLOCK.pack(fcntl.F_WRLCK, 0, region.SLOT_LOCK_OFFSET + 5000 + i, 1, 0)
            fcntl.fcntl(fd, 37, lock)
        reading = read(node)
    finally:
        os.close(fd)
    assert reading is not None


def test_quota_files_are_read_through_the_kubelets_links_only(node: Node, tmp_path: Path) -> None:
    node.quota(uid(1), limit="4147m", gpu_memory="4096", gpu_fraction="")
    assert tenantfiles.read_quota(node.root, uid(1)) == {"limit": "4147m", "gpu-memory": "4096", "gpu-fraction": ""}
    folder = node.root / "pods" / uid(2) / "volumes" / "kubernetes.io~projected" / "vgpu-quota"
    folder.mkdir(parents=True)
    (tmp_path / "limit").write_text("1t")
    (folder / "..data").symlink_to(tmp_path)
    assert tenantfiles.read_quota(node.root, uid(2)) == {}
    (folder / "..data").unlink()
    (folder / "limit").write_text("5m")
    assert tenantfiles.read_quota(node.root, uid(2)) == {"limit": "5m"}, "plain files, as a simple runner writes them"


def test_names_that_no_kubelet_makes_are_not_pods(node: Node) -> None:
    for name in ("-x", "..x", "a b", "x" * 200):
        (node.root / "pods" / name).mkdir()
    (node.root / "pods" / uid(1)).mkdir()
    assert tenantfiles.pod_uids(node.root) == [uid(1)]
