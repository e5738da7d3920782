"""NVML: the only module that imports pynvml (package nvidia-ml-py).

The driver's library may come later than we do, go and come back: each failure leads to a fresh start at the next
question. A call that a card doesn't support costs that value only.
"""

from collections.abc import Callable
from typing import Any

import pynvml

from monitor.cards import Card, CardsError


class Nvml:
    """All cards of the machine, asked through NVML. `api` is the pynvml module or something like it."""

    def __init__(self, api: Any = pynvml) -> None:
        self._api = api
        self._ready = False
        self._seen: dict[str, int] = {}

    def read(self) -> tuple[Card, ...]:
        """Ask for all cards as they are now. Raises CardsError."""
        api = self._api
        try:
            if not self._ready:
                api.nvmlInit()
                self._ready = True
            cards: list[Card] = []
            for index in range(api.nvmlDeviceGetCount()):
                handle = api.nvmlDeviceGetHandleByIndex(index)
                parts = self._mig_instances(handle)
                cards.append(self._card(handle, str(index), with_processes=not parts))
                cards += (self._card(part, f"{index}:{i}", with_processes=True) for i, part in parts)
        except api.NVMLError as e:
            self._restart()
            raise CardsError(str(e)) from e
        return tuple(cards)

    def _restart(self) -> None:
        if self._ready:
            self._ready = False
            try:
                self._api.nvmlShutdown()
            except self._api.NVMLError:
                return

    def _optional(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What the call gives, or None where this card or driver doesn't have it."""
        api = self._api
        absent = {
            api.NVML_ERROR_NOT_SUPPORTED,
            api.NVML_ERROR_FUNCTION_NOT_FOUND,
            api.NVML_ERROR_NOT_FOUND,
            api.NVML_ERROR_NO_PERMISSION,
            api.NVML_ERROR_INVALID_ARGUMENT,
        }
        try:
            return call(*arguments)
        except api.NVMLError as e:
            if e.value in absent:
                return None
            raise

    def _mig_instances(self, handle: Any) -> list[tuple[int, Any]]:
        api = self._api
        mode = self._optional(api.nvmlDeviceGetMigMode, handle)
        if not mode or mode[0] != api.NVML_DEVICE_MIG_ENABLE:
            return []
        count = self._optional(api.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
        parts = ((i, self._optional(api.nvmlDeviceGetMigDeviceHandleByIndex, handle, i)) for i in range(count))
        return [(i, part) for i, part in parts if part is not None]

    def _card(self, handle: Any, index: str, with_processes: bool) -> Card:
        api = self._api
        uuid = api.nvmlDeviceGetUUID(handle)
        memory = self._optional(api.nvmlDeviceGetMemoryInfo, handle)
        rates = self._optional(api.nvmlDeviceGetUtilizationRates, handle)
        return Card(
            index=index,
            uuid=uuid,
            name=self._optional(api.nvmlDeviceGetName, handle) or "unknown",
            total=memory.total if memory else None,
            used=memory.used if memory else None,
            utilization=rates.gpu / 100 if rates else None,
            processes=self._processes(handle) if with_processes else {},
            process_utilization=self._process_utilization(handle, uuid),
        )

    def _processes(self, handle: Any) -> dict[int, int | None]:
        """Every process that holds memory: one may be listed for compute and for graphics, with the same bytes."""
        api = self._api
        held: dict[int, int | None] = {}
        for call in (api.nvmlDeviceGetComputeRunningProcesses, api.nvmlDeviceGetGraphicsRunningProcesses):
            for process in self._optional(call, handle) or ():
                before = held.get(process.pid)
                used = process.usedGpuMemory
                held[process.pid] = used if before is None else max(before, used or 0)
        return held

    def _process_utilization(self, handle: Any, uuid: str) -> dict[int, float] | None:
        """Mean load of each process since the last question."""
        api = self._api
        try:
            samples = api.nvmlDeviceGetProcessUtilization(handle, self._seen.get(uuid, 0))
        except api.NVMLError as e:
            if e.value == api.NVML_ERROR_NOT_FOUND:
                return {}  # nothing ran
            return None
        loads: dict[int, list[int]] = {}
        for sample in samples:
            self._seen[uuid] = max(self._seen.get(uuid, 0), sample.timeStamp)
            loads.setdefault(sample.pid, []).append(sample.smUtil)
        return {pid: sum(values) / len(values) / 100 for pid, values in loads.items()}
