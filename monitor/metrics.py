"""The table of metrics and the page that is made of it. README.md's table is compared with this one by a test."""

from dataclasses import dataclass, field

from monitor.evidence import CardRow, Evidence, Row
from monitor.exposition import Metric, Page
from monitor.messages import Ledger
from monitor.states import STATES

CARD = ("device_index", "device_uuid")
CONTAINER = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
HAMI_CARD = (*CARD, "device_type", "zone")
HAMI_CONTAINER = (*CONTAINER, "zone")
LEGACY_CARD = ("deviceidx", "deviceuuid", "devicetype", "zone")
LEGACY_CONTAINER = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "zone")
ZONE = "vGPU"
G, C = "gauge", "counter"

HAMI = (
    Metric("hami_host_gpu_memory_used_bytes", G, HAMI_CARD, "Memory in use on the card, as NVML says."),
    Metric("hami_host_gpu_utilization_ratio", G, HAMI_CARD, "Load of the card, as NVML says (0 to 1)."),
    Metric(
        "hami_vgpu_memory_used_bytes",
        G,
        HAMI_CONTAINER,
        "Memory that the container's living processes are charged for.",
    ),
    Metric(
        "hami_vgpu_memory_limit_bytes",
        G,
        HAMI_CONTAINER,
        "Limit that the library enforces; the card's size without one.",
    ),
    Metric("hami_container_device_memory_bytes", G, HAMI_CONTAINER, "Sum of context, module and buffer bytes."),
    Metric("hami_container_device_utilization_ratio", G, HAMI_CONTAINER, "Load of the card by the container (0 to 1)."),
    Metric(
        "hami_container_last_kernel_elapsed_seconds", G, HAMI_CONTAINER, "Time since a kernel launch was last noticed."
    ),
    Metric(
        "hami_vgpu_memory_context_bytes", G, HAMI_CONTAINER, "Part of the used bytes: the driver's own, per context."
    ),
    Metric("hami_vgpu_memory_module_bytes", G, HAMI_CONTAINER, "Part of the used bytes: loaded modules."),
    Metric("hami_vgpu_memory_buffer_bytes", G, HAMI_CONTAINER, "Part of the used bytes: what the program asked for."),
)

OWN = (
    Metric("kai_isolator_promised_bytes", G, (*CONTAINER, "source"), "Share by KAI's value or the pod's annotation."),
    Metric("kai_isolator_enforced_bytes", G, CONTAINER, "Limit in force in the library; absent where there is none."),
    Metric("kai_isolator_tracked_bytes", G, CONTAINER, "Bytes that the library has charged."),
    Metric("kai_isolator_real_bytes", G, CONTAINER, "Bytes that the container's processes hold, as NVML says."),
    Metric("kai_isolator_unaccounted_bytes", G, CONTAINER, "Real bytes that the library has not charged."),
    Metric("kai_isolator_peak_bytes", G, CONTAINER, "Most bytes ever charged at once."),
    Metric("kai_isolator_quota_used_ratio", G, CONTAINER, "Charged bytes against the limit in force."),
    Metric(
        "kai_isolator_state", G, (*CONTAINER, "state"), "1 for the state of enforcement that holds, 0 for the others."
    ),
    Metric("kai_isolator_refusals_total", C, CONTAINER, "Requests that the library refused."),
    Metric("kai_isolator_refused_largest_bytes", G, CONTAINER, "Largest request that was refused."),
    Metric("kai_isolator_refused_last_timestamp_seconds", G, CONTAINER, "When a request was last refused."),
    Metric("kai_isolator_processes", G, CONTAINER[:3], "Living processes that the library has registered."),
    Metric(
        "kai_isolator_region_problem", G, (*CONTAINER[:3], "problem"), "1 where the container's ledger is unreadable."
    ),
    Metric("kai_isolator_card_memory_bytes", G, CARD, "Size of the card's memory."),
    Metric("kai_isolator_card_promised_bytes", G, CARD, "Sum of the shares promised on the card."),
    Metric("kai_isolator_card_promised_ratio", G, CARD, "Promised shares against the card; above 1: oversubscribed."),
    Metric(
        "kai_isolator_card_unmanaged_bytes",
        G,
        (*CARD, "holder"),
        "Memory held outside of any share: by processes of no known pod (unknown), by containers without a share "
        "(no_share), by nobody that NVML lists (unlisted).",
    ),
    Metric("kai_isolator_source_up", G, ("source",), "1 if the source answered at the last update."),
    Metric("kai_isolator_source_errors_total", C, ("source",), "Failures of a source."),
    Metric("kai_isolator_source_last_success_timestamp_seconds", G, ("source",), "When the source last answered."),
    Metric("kai_isolator_bad_regions_total", C, ("problem",), "Looks at a region that could not be believed."),
    Metric("kai_isolator_events_total", C, ("state",), "Events written on pods."),
    Metric("kai_isolator_update_seconds", G, (), "Time that the last update took."),
    Metric("kai_isolator_build_info", G, ("version", "abi"), "1; release and the abi of regions it reads."),
)

LEGACY = (
    Metric("HostGPUMemoryUsage", G, LEGACY_CARD, "Memory in use on the card, in bytes."),
    Metric("HostCoreUtilization", G, LEGACY_CARD, "Load of the card, in percent."),
    Metric("vGPU_device_memory_usage_in_bytes", G, LEGACY_CONTAINER, "Memory that the container is charged for."),
    Metric("vGPU_device_memory_limit_in_bytes", G, LEGACY_CONTAINER, "Limit that the library enforces."),
    Metric(
        "Device_memory_desc_of_container",
        G,
        (*LEGACY_CONTAINER, "context", "module", "data", "offset"),
        "Memory that the container is charged for, its parts as labels.",
    ),
    Metric(
        "Device_utilization_desc_of_container", G, LEGACY_CONTAINER, "Load of the card by the container, in percent."
    ),
    Metric("Device_last_kernel_of_container", G, LEGACY_CONTAINER, "Seconds since a kernel launch was last noticed."),
)


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """How one source fares. Times in seconds since 1970."""

    up: bool
    errors: int
    last_success: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All that a page tells."""

    evidence: Evidence
    sources: dict[str, SourceHealth] = field(default_factory=dict)
    bad_regions: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    update_seconds: float = 0.0
    version: str = ""
    abi: int = 0


def render(report: Report, legacy: bool = False) -> bytes:
    """Make the page of a scrape."""
    page = Page((*HAMI, *OWN, *LEGACY))
    for card in report.evidence.cards:
        _card(page, card, legacy)
    for row in report.evidence.rows:
        _row(page, row, legacy)
    _containers(page, report.evidence)
    _self(page, report)
    return page.render()


def _card(page: Page, row: CardRow, legacy: bool) -> None:
    card = row.card
    own = card.index, card.uuid
    labels = *own, f"NVIDIA-{card.name}", ZONE
    page.add("hami_host_gpu_memory_used_bytes", labels, card.used)
    page.add("hami_host_gpu_utilization_ratio", labels, card.utilization)
    if legacy:
        page.add("HostGPUMemoryUsage", labels, card.used)
        page.add("HostCoreUtilization", labels, _percent(card.utilization))
    page.add("kai_isolator_card_memory_bytes", own, card.total)
    page.add("kai_isolator_card_promised_bytes", own, row.promised)
    page.add("kai_isolator_card_promised_ratio", own, row.promised / card.total if card.total else None)
    for holder, held in (("unknown", row.unknown), ("no_share", row.unshared), ("unlisted", row.unlisted)):
        page.add("kai_isolator_card_unmanaged_bytes", (*own, holder), held)


def _row(page: Page, row: Row, legacy: bool) -> None:
    own = row.namespace, row.pod, row.container, row.vdevice, row.device_uuid
    if row.ledger:
        _ledger(page, row, row.ledger, own, legacy)
    if row.promise:
        page.add("kai_isolator_promised_bytes", (*own, row.promise.source), row.promise.promised)
    page.add("kai_isolator_real_bytes", own, row.real)
    page.add("kai_isolator_unaccounted_bytes", own, row.unaccounted)
    if row.state:
        for state in STATES:
            page.add("kai_isolator_state", (*own, state), int(state == row.state))


def _ledger(page: Page, row: Row, ledger: Ledger, own: tuple[str, ...], legacy: bool) -> None:
    labels = *own, ZONE
    limit = row.enforced if row.enforced is not None else ledger.physical
    page.add("hami_vgpu_memory_used_bytes", labels, row.tracked)
    page.add("hami_vgpu_memory_limit_bytes", labels, limit)
    page.add("hami_container_device_memory_bytes", labels, row.tracked)
    page.add("hami_container_device_utilization_ratio", labels, row.utilization)
    page.add("hami_container_last_kernel_elapsed_seconds", labels, row.last_kernel)
    page.add("hami_vgpu_memory_context_bytes", labels, ledger.context)
    page.add("hami_vgpu_memory_module_bytes", labels, ledger.module)
    page.add("hami_vgpu_memory_buffer_bytes", labels, ledger.buffer)
    if legacy:
        parts = str(ledger.context), str(ledger.module), str(ledger.buffer), "0"
        page.add("vGPU_device_memory_usage_in_bytes", labels, row.tracked)
        page.add("vGPU_device_memory_limit_in_bytes", labels, limit)
        page.add("Device_memory_desc_of_container", (*labels, *parts), row.tracked)
        page.add("Device_utilization_desc_of_container", labels, _percent(row.utilization))
        page.add("Device_last_kernel_of_container", labels, row.last_kernel)
    page.add("kai_isolator_enforced_bytes", own, row.enforced)
    page.add("kai_isolator_tracked_bytes", own, row.tracked)
    page.add("kai_isolator_peak_bytes", own, ledger.peak)
    page.add("kai_isolator_quota_used_ratio", own, row.tracked / row.enforced if row.enforced else None)
    page.add("kai_isolator_refusals_total", own, ledger.refusals)
    if ledger.refusals:
        page.add("kai_isolator_refused_largest_bytes", own, ledger.refused_largest)
        page.add("kai_isolator_refused_last_timestamp_seconds", own, ledger.refused_last_ns / 1e9)


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else ratio * 100


def _containers(page: Page, evidence: Evidence) -> None:
    counts = {(r.namespace, r.pod, r.container): r.processes for r in evidence.rows if r.ledger}
    for names, count in counts.items():
        page.add("kai_isolator_processes", names, count)
    for bad in evidence.bad_regions:
        page.add("kai_isolator_region_problem", bad, 1)


def _self(page: Page, report: Report) -> None:
    for source, health in report.sources.items():
        page.add("kai_isolator_source_up", (source,), int(health.up))
        page.add("kai_isolator_source_errors_total", (source,), health.errors)
        page.add("kai_isolator_source_last_success_timestamp_seconds", (source,), health.last_success)
    for problem, count in sorted(report.bad_regions.items()):
        page.add("kai_isolator_bad_regions_total", (problem,), count)
    for state, count in sorted(report.events.items()):
        page.add("kai_isolator_events_total", (state,), count)
    page.add("kai_isolator_update_seconds", (), report.update_seconds)
    page.add("kai_isolator_build_info", (report.version, str(report.abi)), 1)
