"""The runner treats a pod's volumes as a real kubelet was seen to do."""

import stat
from pathlib import Path

import pytest

from e2e.onebox.volumes import FailedMountError
from tests.onebox.conftest import MakePod


def mounted(**volume: object) -> dict[str, object]:
    """A pod's fields with one volume `it`, mounted whole at /it."""
    return {
        "volumes": [{"name": "it", **volume}],
        "main": {"volumeMounts": [{"name": "it", "mountPath": "/it"}]},
    }


@pytest.mark.parametrize(("kind", "words"), [("Directory", "is not a directory"), ("File", "is not a file")])
def test_a_missing_host_path_keeps_the_pod_waiting(kind: str, words: str, make_pod: MakePod, tmp_path: Path) -> None:
    path = tmp_path / "library"
    pod = make_pod(**mounted(hostPath={"path": str(path), "type": kind}))
    with pytest.raises(FailedMountError, match=f"hostPath type check failed: {path} {words}"):
        pod.start()
    assert not pod["main"].is_running()
    if kind == "Directory":
        path.mkdir()
    else:
        path.touch()
    assert pod.start()["main"].is_running()


def test_a_file_where_a_directory_is_wanted_is_refused(make_pod: MakePod, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedMountError, match="is not a directory"):
        make_pod(**mounted(hostPath={"path": str(tmp_path / "file"), "type": "Directory"})).start()


def test_a_host_path_without_type_is_made_silently(make_pod: MakePod, tmp_path: Path) -> None:
    make_pod(**mounted(hostPath={"path": str(tmp_path / "new")})).start()
    assert (tmp_path / "new").is_dir()


def test_memory_volume_is_full_at_its_limit(make_pod: MakePod) -> None:
    pod = make_pod(**mounted(emptyDir={"medium": "Memory", "sizeLimit": "1Mi"})).start()
    assert pod["main"].exec("head", "-c", "900000", "/dev/zero").status == 0
    full = pod["main"].exec("sh", "-c", "head -c 2000000 /dev/zero >/it/file")
    assert full.status != 0
    assert "No space left" in full.errors


def test_a_sub_path_is_open_to_any_uid(make_pod: MakePod) -> None:
    pod = make_pod(
        volumes=[{"name": "it", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}}],
        main={"volumeMounts": [{"name": "it", "mountPath": "/run/vgpu", "subPath": "main"}]},
    ).start()
    assert pod["main"].exec("stat", "-c", "%a", "/run/vgpu").output == "1777\n"
    assert pod["main"].exec("touch", "/run/vgpu/region").status == 0
    on_the_node = pod.directory / "volumes" / "kubernetes.io~empty-dir" / "it" / "main"
    assert [path.name for path in pod.node.see(on_the_node).iterdir()] == ["region"]
    assert not on_the_node.exists(), "the memory volume is mounted in the node's own namespace only"


def test_a_sub_path_cant_leave_its_volume(make_pod: MakePod) -> None:
    pod = make_pod(
        volumes=[{"name": "it", "emptyDir": {}}],
        main={"volumeMounts": [{"name": "it", "mountPath": "/it", "subPath": "../.."}]},
    )
    with pytest.raises(FailedMountError, match="leaves its volume"):
        pod.start()


def test_an_empty_dir_survives_a_restart(make_pod: MakePod) -> None:
    pod = make_pod(**mounted(emptyDir={})).start()
    pod["main"].exec("touch", "/it/kept")
    pod["main"].restart()
    assert pod["main"].exec("ls", "/it").output == "kept\n"


def test_a_read_only_mount_cant_be_written(make_pod: MakePod) -> None:
    fields = mounted(emptyDir={})
    pod = make_pod(
        volumes=fields["volumes"], main={"volumeMounts": [{"name": "it", "mountPath": "/it", "readOnly": True}]}
    ).start()
    assert "Read-only file system" in pod["main"].exec("touch", "/it/file").errors


PROJECTED = {
    "projected": {
        "sources": [
            {"configMap": {"name": "kai", "optional": True, "items": [{"key": "LIMIT", "path": "limit"}]}},
            {
                "downwardAPI": {
                    "items": [
                        {"path": name, "fieldRef": {"fieldPath": f"metadata.annotations['{name}']"}}
                        for name in ("gpu-memory", "gpu-fraction")
                    ]
                }
            },
        ]
    }
}


def test_projected_files_are_links_through_a_directory_that_is_swapped_whole(make_pod: MakePod) -> None:
    config_maps = {"kai": {"LIMIT": "4147m"}}
    pod = make_pod(config_maps, {"gpu-memory": "4096"}, **mounted(**PROJECTED)).start()
    directory = pod.directory / "volumes" / "kubernetes.io~projected" / "it"
    assert str((directory / "limit").readlink()) == "..data/limit"
    assert stat.S_IMODE((directory / "limit").stat().st_mode) == 0o644
    old = (directory / "..data").readlink()
    config_maps["kai"]["LIMIT"] = "2048m"
    pod.volumes.refresh()
    assert (directory / "..data").readlink() != old
    assert not (directory / old).exists()
    assert pod["main"].exec("cat", "/it/limit", "/it/gpu-memory").output == "2048m4096"


def test_an_annotation_that_is_missing_is_an_empty_file(make_pod: MakePod) -> None:
    pod = make_pod({}, {"gpu-memory": "4096"}, **mounted(**PROJECTED)).start()
    assert pod["main"].exec("stat", "-c", "%s", "-L", "/it/gpu-fraction").output == "0\n"


def test_an_optional_config_map_shows_when_it_comes(make_pod: MakePod) -> None:
    config_maps: dict[str, dict[str, str]] = {}
    pod = make_pod(config_maps, **mounted(**PROJECTED)).start()
    assert pod["main"].exec("cat", "/it/limit").status != 0
    config_maps["kai"] = {"LIMIT": "4147m"}
    pod.volumes.refresh()
    assert pod["main"].exec("cat", "/it/limit").output == "4147m"


def test_an_update_never_reaches_a_sub_path(make_pod: MakePod) -> None:
    annotations = {"gpu-memory": "4096"}
    pod = make_pod(
        {},
        annotations,
        volumes=[{"name": "it", **PROJECTED}],
        main={"volumeMounts": [{"name": "it", "mountPath": "/memory", "subPath": "gpu-memory"}]},
    ).start()
    annotations["gpu-memory"] = "9000"
    pod.volumes.refresh()
    assert pod["main"].exec("cat", "/memory").output == "4096"


def test_a_required_config_map_that_is_missing_keeps_the_pod_waiting(make_pod: MakePod) -> None:
    config_maps: dict[str, dict[str, str]] = {}
    pod = make_pod(config_maps, **mounted(configMap={"name": "absent"}))
    with pytest.raises(FailedMountError, match='configmap "absent" not found'):
        pod.start()
    config_maps["absent"] = {"key": "value"}
    assert pod.start()["main"].exec("cat", "/it/key").output == "value"


def test_an_unknown_kind_of_volume_is_refused(make_pod: MakePod) -> None:
    with pytest.raises(FailedMountError, match="nfs is not a kind"):
        make_pod(volumes=[{"name": "it", "nfs": {"server": "x", "path": "/"}}]).start()
