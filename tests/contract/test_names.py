"""A name that two parts must both know is the same in each: C headers, webhook, libsync, monitor."""

import json
import subprocess
from pathlib import Path

import pytest

import libsync
from libsync import names as libsync_names
from monitor import names as monitor_names
from monitor import region as monitor_region
from webhook import names as webhook_names


@pytest.fixture(scope="module")
def header(build: Path) -> dict[str, str | int]:
    """Names as the compiler knows them."""
    done = subprocess.run([build / "tests" / "names"], check=True, capture_output=True, text=True)
    printed: dict[str, str | int] = json.loads(done.stdout)
    return printed


def test_release_is_the_headers(header: dict[str, str | int]) -> None:
    assert libsync.__version__ == header["VERSION"]


def test_abi_is_the_headers(header: dict[str, str | int]) -> None:
    """The webhook mounts the directory of this abi; the monitor reads regions of this abi."""
    assert header["ABI"] == webhook_names.ABI
    assert header["ABI"] in monitor_region.READABLE_ABIS


@pytest.mark.parametrize("names", [webhook_names, monitor_names, libsync_names], ids=lambda m: m.__name__)
def test_paths_in_the_container_are_the_headers(names: object, header: dict[str, str | int]) -> None:
    """Whatever a part repeats under the header's name has the header's value."""
    repeated = {name: getattr(names, name) for name in header if hasattr(names, name)}
    if names is libsync_names:
        # On the node the file has no directory; in the container it lies at PRELOAD_FILE.
        repeated["PRELOAD_FILE"] = f"/etc/{repeated['PRELOAD_FILE']}"
    assert repeated
    assert repeated == {name: header[name] for name in repeated}


def test_preload_file_names_the_mounted_library() -> None:
    """What libsync writes into the preload file is where the webhook mounts the library."""
    mounted = f"{webhook_names.LIBRARY_DIR}/{webhook_names.LIBRARY_FILE}"
    assert mounted == libsync_names.LIBRARY_IN_POD
    assert f"{mounted}\n" == libsync_names.PRELOAD_TEXT


def test_monitor_looks_for_the_volumes_that_the_webhook_puts_in() -> None:
    assert monitor_names.VOLUME_REGION == webhook_names.REGION_VOLUME
    assert monitor_names.VOLUME_QUOTA == webhook_names.QUOTA_VOLUME
    assert monitor_names.VOLUME_PRELOAD == webhook_names.PRELOAD_VOLUME


def test_monitor_reads_the_annotations_that_the_webhook_acts_on() -> None:
    assert (
        monitor_names.ANNOTATION_MEMORY,
        monitor_names.ANNOTATION_FRACTION,
        monitor_names.ANNOTATION_CONTAINER,
        monitor_names.ANNOTATION_DEVICES,
    ) == (
        webhook_names.GPU_MEMORY,
        webhook_names.GPU_FRACTION,
        webhook_names.GPU_CONTAINER,
        webhook_names.GPU_DEVICES,
    )
