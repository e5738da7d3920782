"""NVML is asked for what it has, and what it has not costs that value only."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from monitor.cards import CardsError
from monitor.nvml import Nvml
from tests.monitor.tree import MIB


class Api:
    """A pynvml with two cards, the second of them split in instances; any call can be told to fail."""

    NVMLError = pynvml.NVMLError
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self.starts = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML_"):
            return getattr(pynvml, name)
        answer: Any = {
            "nvmlInit": self._init,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: f"card{index}",
            "nvmlDeviceGetMigMode": lambda handle: [int(handle == "card1")] * 2,
            "nvmlDeviceGetMaxMigDeviceCount": lambda _: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._instance,
            "nvmlDeviceGetUUID": lambda handle: ("MIG-" if "mig" in handle else "GPU-") + handle,
            "nvmlDeviceGetName": lambda _: "Tesla T4",
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=100 * MIB, used=9 * MIB),
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=25),
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [
                SimpleNamespace(pid=1, usedGpuMemory=5 * MIB),
                SimpleNamespace(pid=2, usedGpuMemory=None),
            ],
            "nvmlDeviceGetGraphicsRunningProcesses": lambda _: [SimpleNamespace(pid=1, usedGpuMemory=4 * MIB)],
            "nvmlDeviceGetProcessUtilization": lambda _, since: [
                SimpleNamespace(pid=1, timeStamp=since + 1, smUtil=10),
                SimpleNamespace(pid=1, timeStamp=since + 2, smUtil=20),
            ],
        }[name]

        def call(*arguments: Any) -> Any:
            if name in self.failures:
                raise pynvml.NVMLError(self.failures[name])
            return answer(*arguments)

        return call

    def _init(self) -> None:
        self.starts += 1

    @staticmethod
    def _instance(_: str, index: int) -> str:
        if index > 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return f"mig{index}"


def test_cards_and_their_instances_are_listed() -> None:
    cards = Nvml(Api()).read()
    assert [(c.index, c.uuid) for c in cards] == [
        ("0", "GPU-card0"),
        ("1", "GPU-card1"),
        ("1:0", "MIG-mig0"),
        ("1:1", "MIG-mig1"),
    ]
    first = cards[0]
    assert (first.name, first.total, first.used, first.utilization) == ("Tesla T4", 100 * MIB, 9 * MIB, 0.25)
    assert first.processes == {1: 5 * MIB, 2: None}, "one listed twice counts once"
    assert first.process_utilization == {1: 0.15}
    assert cards[1].processes == {}, "the instances list them"


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetMemoryInfo", "total"),
        ("nvmlDeviceGetMemoryInfo", "used"),
        ("nvmlDeviceGetUtilizationRates", "utilization"),
        ("nvmlDeviceGetProcessUtilization", "process_utilization"),
    ],
)
def test_what_a_card_doesnt_support_is_unknown(call: str, field: str) -> None:
    """A card with unified memory has no figures of its own, an old driver has none per process."""
    api = Api()
    api.failures[call] = pynvml.NVML_ERROR_NOT_SUPPORTED
    card = Nvml(api).read()[0]
    assert getattr(card, field) is None
    assert card.uuid == "GPU-card0"


def test_a_driver_that_comes_later_is_found_later() -> None:
    api = Api()
    nvml = Nvml(api)
    api.failures["nvmlInit"] = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    for _ in range(2):
        with pytest.raises(CardsError, match=r"Not Found"):
            nvml.read()
    del api.failures["nvmlInit"]
    assert len(nvml.read()) == 4
    assert api.starts == 1


def test_a_driver_that_was_restarted_is_started_anew() -> None:
    api = Api()
    nvml = Nvml(api)
    nvml.read()
    api.failures["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_UNINITIALIZED
    with pytest.raises(CardsError):
        nvml.read()
    api.failures.clear()
    assert len(nvml.read()) == 4
    assert api.starts == 2
