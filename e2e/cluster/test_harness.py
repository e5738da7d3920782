"""The clusters of the tests themselves: they end without a trace, whatever happens to the one who started them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster import janitor, programs, settings
from e2e.cluster.cluster import Cluster
from e2e.cluster.programs import MissingError
from e2e.cluster.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
START = """
import sys, time
from e2e.cluster.cluster import Cluster
from e2e.cluster.settings import Settings
with Cluster(Settings(), node=True) as cluster:
    print(cluster.folder, flush=True)
    time.sleep(600)
"""


def _processes_of(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if str(folder) in line:
            found.append(line)
    return found


def _left(folder: Path) -> list[str]:
    """Whatever is there of a run."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    return [
        *_processes_of(folder),
        *mounts,
        *map(str, janitor.groups(folder.name)),
        *([str(folder)] if folder.exists() else []),
    ]


def test_run_that_is_killed_leaves_nothing(api_server: Cluster) -> None:
    run = subprocess.Popen([sys.executable, "-c", START], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    with run.stdout:
        folder = Path(run.stdout.readline().strip())
        programs = _processes_of(folder)
        assert all(
            any(name in line for line in programs) for name in ("etcd", "kube-apiserver", "containerd", "kubelet")
        )
        assert janitor.groups(folder.name)
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    took = api_server.wait("nothing of it is left", lambda: _left(folder) == [], 30)
    assert api_server.folder.exists()
    print(f"{len(programs)} programs of a node; {took:.1f} s after SIGKILL no process, mount, control group or folder")


def test_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    cluster = Cluster(Settings(cache=tmp_path), node=False)
    with pytest.raises(RuntimeError, match="kube-apiserver ended"), cluster:
        pass
    assert _left(cluster.folder) == []


def test_foreign_cluster_without_a_gpu_is_skipped_with_the_reason(api_server: Cluster) -> None:
    kubeconfig = f"KUBECONFIG={api_server.kubeconfig}"
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "e2e/cluster/test_share.py", "--foreign"]
    output = api_server.run(["env", kubeconfig, *tests]).stdout
    assert "no node of the cluster offers nvidia.com/gpu" in output
    assert "passed" not in output
    print(next(line for line in output.splitlines() if line.startswith("SKIPPED"))[:150])


def test_missing_packages_are_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.PACKAGES, "imaginary", "/usr/bin/imaginary")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingError, match="install them as root: imaginary"):
        programs.install_packages()
