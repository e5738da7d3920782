"""`make demo` tells the truth: it ends well only where the promise is kept, and README shows the pod that it runs."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from e2e.onebox.chain import Chain, is_free
from e2e.onebox.node import ROOT
from e2e.onebox.story import NotAsSaidError, Story
from e2e.onebox.tale import STEPS, tell
from tests.libsync.conftest import SOURCE

LINES = (
    r"    limit=4147m",
    r"    /usr/local/vgpu/libvgpu\.so",
    r"    GPU-[-0-9a-f]+, 4147 MiB",
    r"    granted  3 GiB",
    r"    Device 0 OOM 5475663872 / 4348444672",
    r"    default/cheat / main +0 +2150 MiB +2150 MiB +2764 MiB .* bypassed",
    r"    quick-start +4096 MiB +4147 MiB +3174 MiB +1 × 2 GiB",
    r"    neighbour +4096 MiB +4147 MiB +3174 MiB +1 × 2 GiB",
)


def run_demo(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "e2e.onebox.demo", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_the_demo_ends_well_and_prints_what_is_promised() -> None:
    done = run_demo()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert done.stderr == ""
    for line in LINES:
        assert re.search(f"^{line}$", done.stdout, re.MULTILINE), f"not printed: {line}"
    assert f"[{STEPS}/{STEPS}]" in done.stdout


def test_kept_demo_stays_up_until_it_is_ended() -> None:
    done = run_demo("--keep")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    pid = int(re.findall(r"^    end it:  kill (\d+)$", done.stdout, re.MULTILINE)[0])
    url = re.findall(r"^    curl (\S+)$", done.stdout, re.MULTILINE)[0]
    try:
        with urllib.request.urlopen(url, timeout=10) as page:  # noqa: S310 — http on this machine
            assert b"hami_vgpu_memory_used_bytes{" in page.read()
    finally:
        os.kill(pid, signal.SIGTERM)
    port = int(url.split(":")[2].split("/")[0])
    end = time.monotonic() + 20
    while not is_free(port) and time.monotonic() < end:
        time.sleep(0.05)
    assert is_free(port)


def test_where_no_namespaces_are_allowed_one_sentence_says_the_remedy() -> None:
    script = 'echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
    command = [*prefix, sys.executable, "-m", "e2e.onebox.demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "run it as root, or allow unprivileged user namespaces" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_ended_demo_leaves_nothing_behind(number: int) -> None:
    """Ended while the first pod runs: no process, no directory of it is left."""
    # What a shell starts in the background ignores SIGINT, and so would its children.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "e2e.onebox.demo"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        said = iter(demo.stdout.readline, "")
        directory = next(hit[1] for line in said if (hit := re.search(r"(/\S*/onebox/node-\w+)/", line)))
        next(line for line in said if line.startswith("[6/"))
        demo.send_signal(number)
        demo.stdout.read()
        assert demo.wait(timeout=60) != 0
    end = time.monotonic() + 30
    while (left := leftovers(directory)) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []


def leftovers(directory: str) -> list[str]:
    """What is still there of a node: its directory, and processes that name it or have it mounted."""
    found = [directory] if Path(directory).exists() else []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if directory in (process / "cmdline").read_text() + (process / "mountinfo").read_text():
                found.append(str(process))
    return found


def test_a_library_that_enforces_nothing_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says its version and lets everything pass: libsync can't know, the story's reverse test does."""
    (tmp_path / "library.c").write_text(SOURCE.format(version="9.9", abi=1, more="", padding_bytes=64))
    library = tmp_path / "libvgpu.so"
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-o", str(library), "library.c"]
    subprocess.run(command, check=True, cwd=tmp_path)
    with Chain() as chain:
        chain.library = library
        with pytest.raises(NotAsSaidError):
            tell(chain, Story(STEPS, coloured=False))
    assert "✗ not so" in capsys.readouterr().out


def test_readme_shows_the_pod_that_the_demo_runs() -> None:
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"<!-- quickstart -->\n```yaml\n(.*?)```\n<!-- /quickstart -->", readme, re.DOTALL)
    assert shown is not None
    assert shown[1] == (ROOT / "e2e" / "quickstart.yaml").read_text()


def test_the_quick_start_pod_is_one_that_a_cluster_takes() -> None:
    pod = yaml.safe_load((ROOT / "e2e" / "quickstart.yaml").read_text())
    assert (pod["apiVersion"], pod["kind"], pod["spec"]["schedulerName"]) == ("v1", "Pod", "kai-scheduler")
    assert pod["metadata"]["annotations"] == {"gpu-memory": "4096"}
