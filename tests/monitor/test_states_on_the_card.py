"""Each state of enforcement, brought about by real programs on a simulated card, in pods that went through the chain.

The monitor runs beside them and is only scraped. Needs namespaces, as tests/onebox does.
"""

import json
import shlex
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.onebox.chain import Chain
from e2e.onebox.pod import Pod
from monitor import region
from tests.monitor.conftest import ROOT, port_of, samples, state, value
from tests.monitor.tree import MIB

GIB = 1 << 30
CONTEXT = 102 * MIB
LIMIT = 4147 * MIB
INTERVAL = 0.5
GRACE = 1.0
LIMIT_OFFSET = region.HEADER_BYTES + 72
Run = Callable[..., Pod]

# An own dynamic linker that looks for another preload file, as a static program brings its own or none.
OWN_LINKER = """
sed s,/etc/ld.so.preload,/etc/ld.so.nothing, /lib64/ld-linux-x86-64.so.2 > /tmp/ld.so
chmod +x /tmp/ld.so
exec /tmp/ld.so /usr/local/bin/vgpu-probe hold 1g
"""
# The preload file covered in a mount namespace of its own: possible where user namespaces are.
COVERED = """
unshare --user --map-root-user --mount true || { echo no user namespaces, nothing held here; exec sleep infinity; }
exec unshare --user --map-root-user --mount sh -c '
    mount --bind /dev/null /etc/ld.so.preload && exec vgpu-probe hold 1g'
"""


class Watched:
    """A chain with a monitor beside it."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        chain.prepare_node()
        chain.start_webhook()
        chain.write_pods_file()
        log = chain.node.directory / "watcher.log"
        command = [
            sys.executable, "-m", "monitor", "--listen", "127.0.0.1:0", "--kubelet-root", str(chain.node.kubelet_root),
            "--pods-file", str(chain.pods_file), "--interval", str(INTERVAL), "--grace", str(GRACE), "--deadline", "20",
        ]  # fmt: skip
        with log.open("wb") as out:
            process = chain.node.spawn(command, chain.node.driver_env(), out)
        self.port = port_of(log, process)

    def page(self, path: str = "/metrics") -> str:
        """One scrape."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return str(answer.read().decode())

    def wait_for(self, pod: Pod, wanted: str) -> str:
        """Scrape until the pod has that state; the page.

        Once a first scrape has seen what is wrong, it must be said after the grace time and two update intervals.
        """
        seen: float | None = None
        while True:
            began = time.monotonic()
            page = self.page()
            if (found := state(page, pod.name)) == wanted:
                return page
            late = seen is not None and began > seen + GRACE + 2 * INTERVAL
            assert not late, f"{pod.name} is {found}, not {wanted}:\n{pod['main'].logs()}\n{page}"
            seen = seen or time.monotonic()
            time.sleep(0.1)

    def stays(self, pod: Pod, wanted: str) -> None:
        """The state holds for longer than the grace time."""
        end = time.monotonic() + GRACE + 2 * INTERVAL
        while time.monotonic() < end:
            assert state(self.page(), pod.name) == wanted
            time.sleep(0.1)


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with Chain() as chain:
        yield Watched(chain)


@pytest.fixture
def run(watched: Watched) -> Iterator[Run]:
    """Run a pod with a share, its container doing what a shell script says."""
    made: list[Pod] = []
    chain = watched.chain

    def start(script: str, annotations: dict[str, str] | None = None, label_mib: int = 15360) -> Pod:
        manifest: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"pod-{time.monotonic_ns()}",
                "annotations": annotations if annotations is not None else {"gpu-memory": "4096"},
            },
            "spec": {
                "schedulerName": "kai-scheduler",
                "containers": [{"name": "main", "image": "probe", "command": ["sh", "-c", script]}],
            },
        }
        pod = chain.run(manifest, label_mib)
        made.append(pod)
        return pod

    yield start
    for pod in made:
        chain.delete(pod)


def held(pod: Pod) -> None:
    pod["main"].wait_for_log("held ")


def test_a_program_within_its_share_is_enforced_and_stays_so(watched: Watched, run: Run) -> None:
    pod = run("exec vgpu-probe hold 3g")
    held(pod)
    page = watched.wait_for(pod, "enforced")
    assert value(page, "kai_isolator_promised_bytes", pod=pod.name, source="kai") == LIMIT
    assert value(page, "kai_isolator_enforced_bytes", pod=pod.name) == LIMIT
    for name in ("kai_isolator_tracked_bytes", "kai_isolator_real_bytes", "hami_vgpu_memory_used_bytes"):
        assert value(page, name, pod=pod.name) == watched.chain.held_bytes(pod) == 3 * GIB + CONTEXT
    assert value(page, "hami_vgpu_memory_buffer_bytes", pod=pod.name) == 3 * GIB
    assert value(page, "hami_vgpu_memory_context_bytes", pod=pod.name) == CONTEXT
    watched.stays(pod, "enforced")


def test_a_refusal_is_counted_with_its_size_and_time(watched: Watched, run: Run) -> None:
    before = time.time()
    pod = run("vgpu-probe alloc 3g 2g; exec vgpu-probe hold 1g")
    held(pod)
    page = watched.page()
    assert value(page, "kai_isolator_refusals_total", pod=pod.name) == 1
    assert value(page, "kai_isolator_refused_largest_bytes", pod=pod.name) == 2 * GIB
    assert (
        before - 1 <= (value(page, "kai_isolator_refused_last_timestamp_seconds", pod=pod.name) or 0) <= time.time() + 1
    )


def test_a_killed_program_leaves_no_bytes_in_the_next_scrape(watched: Watched, run: Run) -> None:
    pod = run("vgpu-probe hold 3g & wait; exec sleep infinity")
    held(pod)
    assert value(watched.page(), "kai_isolator_tracked_bytes", pod=pod.name) == 3 * GIB + CONTEXT
    pod["main"].exec("sh", "-c", "kill -9 $(pidof vgpu-probe)")
    end = time.monotonic() + 20
    while watched.chain.held_bytes(pod):
        assert time.monotonic() < end
    page = watched.page()
    assert value(page, "kai_isolator_tracked_bytes", pod=pod.name) == 0
    assert value(page, "hami_vgpu_memory_limit_bytes", pod=pod.name) == LIMIT, "it keeps its place"
    assert state(page, pod.name) == "enforced"


def test_a_container_that_uses_no_gpu_is_unused(watched: Watched, run: Run) -> None:
    watched.wait_for(run("exec sleep infinity"), "unused")


def test_a_program_with_its_own_linker_is_not_loaded(watched: Watched, run: Run) -> None:
    pod = run(OWN_LINKER)
    held(pod)
    page = watched.wait_for(pod, "not_loaded")
    assert value(page, "kai_isolator_real_bytes", pod=pod.name) == GIB + CONTEXT
    assert value(page, "kai_isolator_unaccounted_bytes", pod=pod.name) == GIB + CONTEXT


def test_a_static_program_is_not_loaded(watched: Watched, run: Run) -> None:
    """It has no dynamic linker that could load anything, and a driver of its own making."""
    image_etc = watched.chain.node.directory / "image" / "etc"  # the one folder that the image has of its own
    shutil.copy(ROOT / "build" / "tests" / "static-hold", image_etc)
    pod = run(f"exec /etc/static-hold {GIB}")
    held(pod)
    page = watched.wait_for(pod, "not_loaded")
    assert value(page, "kai_isolator_real_bytes", pod=pod.name) == watched.chain.held_bytes(pod) == GIB + CONTEXT
    assert value(page, "kai_isolator_tracked_bytes", pod=pod.name) is None, "no ledger knows of it"


def test_a_covered_preload_file_is_not_loaded(watched: Watched, run: Run) -> None:
    """Where the container may make a user namespace, the program in it has no library and is seen all the same."""
    pod = run(COVERED)
    held(pod)
    if "no user namespaces" in pod["main"].logs():
        print("no user namespaces in containers on this machine")
        return
    watched.wait_for(pod, "not_loaded")


def test_beside_a_program_with_the_library_one_without_is_a_bypass(watched: Watched, run: Run) -> None:
    pod = run(f"vgpu-probe hold 2g & sh -c {shlex.quote(OWN_LINKER)} & wait")
    end = time.monotonic() + 30
    while pod["main"].logs().count("held ") < 2:
        assert time.monotonic() < end, pod["main"].logs()
        time.sleep(0.05)
    page = watched.wait_for(pod, "bypassed")
    assert value(page, "kai_isolator_unaccounted_bytes", pod=pod.name) == GIB + CONTEXT


@pytest.mark.parametrize(
    "spoil",
    [
        "rm /run/vgpu/region",
        f"head -c {region.REGION_BYTES} /dev/zero | dd of=/run/vgpu/region conv=notrunc",
        "ln -sf /etc/passwd /run/vgpu/region",
    ],
    ids=["deleted", "zeroed", "linked"],
)
def test_a_ledger_taken_away_is_a_bypass(watched: Watched, run: Run, spoil: str) -> None:
    pod = run("exec vgpu-probe hold 2g")
    held(pod)
    watched.wait_for(pod, "enforced")
    done = pod["main"].exec("sh", "-c", spoil)
    assert done.status == 0, done.errors
    page = watched.wait_for(pod, "bypassed")
    assert (
        sum(v for k, v in samples(page)["kai_isolator_real_bytes"].items() if ("pod", pod.name) in k)
        == 2 * GIB + CONTEXT
    )


def write_limit(pod: Pod, limit: int) -> None:
    octal = "".join(f"\\{byte:03o}" for byte in limit.to_bytes(8, "little"))
    script = f"printf '{octal}' | dd of=/run/vgpu/region bs=1 seek={LIMIT_OFFSET} conv=notrunc"
    done = pod["main"].exec("sh", "-c", script)
    assert done.status == 0, done.errors


def test_a_ledger_without_a_limit_is_no_limit(watched: Watched, run: Run) -> None:
    pod = run("exec vgpu-probe hold 1g")
    held(pod)
    write_limit(pod, region.UNLIMITED)
    watched.wait_for(pod, "no_limit")


def test_a_ledger_with_another_limit_than_the_promised_one_is_a_mismatch(watched: Watched, run: Run) -> None:
    pod = run("exec vgpu-probe hold 1g")
    held(pod)
    write_limit(pod, 14 * GIB)
    watched.wait_for(pod, "mismatch")


def test_a_value_of_kai_that_doesnt_fit_the_annotation_is_a_mismatch(watched: Watched, run: Run) -> None:
    """A node label in bytes where MiB were meant: the annotation holds, and somebody should look at the label."""
    pod = run("exec vgpu-probe hold 1g", label_mib=15360 * MIB)
    held(pod)
    page = watched.wait_for(pod, "mismatch")
    assert value(page, "kai_isolator_promised_bytes", pod=pod.name) == 4096 * MIB
    assert value(page, "kai_isolator_enforced_bytes", pod=pod.name) == 4096 * MIB


def test_a_limit_lowered_below_what_is_held_is_over_limit(watched: Watched, run: Run) -> None:
    pod = run("exec vgpu-probe hold 3g")
    held(pod)
    watched.wait_for(pod, "enforced")
    for data in pod.config_maps.values():
        if "CUDA_DEVICE_MEMORY_LIMIT" in data:
            assert isinstance(data, dict)
            data["CUDA_DEVICE_MEMORY_LIMIT"] = "2048m"
    pod.volumes.refresh()
    pod["main"].exec("vgpu-probe", "info")  # reads the new limit and publishes it
    watched.wait_for(pod, "over_limit")


def unmanaged(page: str) -> float:
    """Memory that processes hold outside of any share."""
    found = samples(page)["kai_isolator_card_unmanaged_bytes"]
    return sum(v for labels, v in found.items() if dict(labels)["holder"] != "unlisted")


def test_a_pod_without_a_share_shows_as_memory_that_no_share_covers(watched: Watched, run: Run) -> None:
    """Without control groups nothing tells whose it is (holder unknown); that no share covers it is what counts."""
    before = unmanaged(watched.page())
    pod = run("exec vgpu-probe hold 1g", annotations={})
    held(pod)
    page = watched.page()
    assert unmanaged(page) == before + watched.chain.held_bytes(pod)
    assert state(page, pod.name) is None


def test_a_program_outside_of_pods_shows_as_unknown(watched: Watched) -> None:
    node = watched.chain.node
    probe = Path(node.directory / "image" / "bin" / "vgpu-probe")
    log = node.directory / "outside.log"
    with log.open("wb") as out:
        process = node.spawn([probe, "hold", "512m"], node.driver_env(), out)
    try:
        end = time.monotonic() + 30
        while "held " not in log.read_text():
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        assert value(watched.page(), "kai_isolator_card_unmanaged_bytes", holder="unknown") == 512 * MIB + CONTEXT
    finally:
        process.kill()
        process.wait()


def test_a_deleted_pods_series_end_at_once(watched: Watched, run: Run) -> None:
    pod = run("exec vgpu-probe hold 1g")
    held(pod)
    assert pod.name in watched.page()
    watched.chain.delete(pod)
    page = watched.page()
    watched.chain.pods.append(pod)  # the fixture deletes it again
    assert pod.name not in page


def test_the_evidence_page_tells_the_same(watched: Watched, run: Run) -> None:
    pod = run("exec vgpu-probe hold 1g")
    held(pod)
    watched.wait_for(pod, "enforced")
    entry = next(e for e in json.loads(watched.page("/evidence"))["containers"] if e["pod"] == pod.name)
    assert (entry["state"], entry["real_bytes"], entry["enforced_bytes"]) == ("enforced", GIB + CONTEXT, LIMIT)
