"""KAI's part as it was watched on a real cluster: its sum, its holes, and what it leaves of a pod."""

import pytest

from e2e.onebox import kai

LABEL_MIB = 15360


def bound(annotations: dict[str, str], label_mib: int | None) -> str | None:
    """KAI's limit for a pod with these annotations."""
    pod = {"metadata": {"name": "x", "annotations": annotations}, "spec": SPEC}
    return next(iter(kai.bind(kai.admit(pod), label_mib, "GPU-1").values())).get("CUDA_DEVICE_MEMORY_LIMIT")


SPEC = {
    "schedulerName": "kai-scheduler",
    "containers": [{"name": "a"}, {"name": "b"}],
    "initContainers": [{"name": "i"}],
}


@pytest.mark.parametrize(
    ("annotation", "value", "limit"),
    [
        ("gpu-memory", "4096", "4147m"),
        ("gpu-memory", "1", "153m"),
        ("gpu-memory", "460", "614m"),
        ("gpu-memory", "15148", "15360m"),
        ("gpu-memory", "15300", "15360m"),
        ("gpu-fraction", "0.5", "7680m"),
        ("gpu-fraction", "0.333", "5068m"),
        ("gpu-fraction", "0.999", "15360m"),
        ("gpu-fraction", "0.004", None),
    ],
)
def test_kais_sum(annotation: str, value: str, limit: str | None) -> None:
    assert bound({annotation: value}, LABEL_MIB) == limit


@pytest.mark.parametrize("annotations", [{"gpu-memory": "4096"}, {"gpu-fraction": "0.5"}])
def test_without_the_nodes_label_there_is_no_limit(annotations: dict[str, str]) -> None:
    assert bound(annotations, None) is None


def test_a_label_in_bytes_gives_a_limit_beyond_all_cards() -> None:
    assert bound({"gpu-fraction": "0.27"}, LABEL_MIB << 20) == "4348654387m"


@pytest.mark.parametrize(("name", "suffix"), [(None, "0"), ("b", "1"), ("i", "i0")])
def test_the_config_maps_name_says_which_container(name: str | None, suffix: str) -> None:
    annotations = {"gpu-memory": "4096"} | ({"gpu-fraction-container-name": name} if name else {})
    pod = kai.admit({"metadata": {"name": "x", "annotations": annotations}, "spec": SPEC})
    base = pod["metadata"]["annotations"]["runai/shared-gpu-configmap"]
    assert set(kai.bind(pod, LABEL_MIB, "GPU-1")) == {f"{base}-{suffix}", f"{base}-{suffix}-evar"}
    container, _ = kai.target(pod)
    assert [entry["name"] for entry in container["env"]] == [
        "NVIDIA_VISIBLE_DEVICES",
        "RUNAI_NUM_OF_GPUS",
        "GPU_PORTION",
        "CUDA_DEVICE_MEMORY_LIMIT",
    ]


def test_a_second_call_changes_nothing() -> None:
    pod = kai.admit({"metadata": {"name": "x", "annotations": {"gpu-memory": "4096"}}, "spec": SPEC})
    assert kai.admit(pod) == pod


def test_an_own_limit_is_replaced_and_moved_to_the_end() -> None:
    own = [{"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "9g"}, {"name": "MINE", "value": "x"}]
    spec = {"schedulerName": "kai-scheduler", "containers": [{"name": "a", "env": own}]}
    pod = kai.admit({"metadata": {"name": "x", "annotations": {"gpu-memory": "4096"}}, "spec": spec})
    env = pod["spec"]["containers"][0]["env"]
    assert env[0]["name"] == "MINE"
    assert "valueFrom" in env[-1]


def test_other_schedulers_pods_are_left_alone() -> None:
    pod = {"metadata": {"name": "x", "annotations": {"gpu-memory": "4096"}}, "spec": {"containers": [{"name": "a"}]}}
    assert kai.admit(pod) == pod
