"""One picture from all sources: who holds what, on which card, and what of it nobody answers for."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest

from monitor import reader
from monitor.cards import Card
from monitor.evidence import Evidence, Row
from monitor.joiner import Joiner
from monitor.messages import Holding, Scan
from monitor.podfile import PodFile
from monitor.pods import Pod
from tests.monitor.tree import MIB, T4, T4_BYTES, Node, WrittenDevice, WrittenSlot, uid

SECOND = "GPU-22222222-0000-4000-8000-000000000000"
ASKED = {"gpu-memory": "4096"}
CONTEXT = 102 * MIB
SLOTS = {0: WrittenSlot([(CONTEXT, MIB, 3071 * MIB)], [5])}


def card(processes: dict[int, int | None] | None = None, uuid: str = T4, index: str = "0", **values: object) -> Card:
    used = sum(v or 0 for v in (processes or {}).values())
    made = Card(index, uuid, "Tesla T4", T4_BYTES, used, 0.5, processes or {})
    return dataclasses.replace(made, **values)  # type: ignore[arg-type]


@dataclasses.dataclass
class Watcher:
    """Looks at a node's tree as the monitor does."""

    node: Node
    joiner: Joiner = dataclasses.field(default_factory=lambda: Joiner(10, 64 * MIB))
    clock: float = 1000.0

    def look(
        self, cards: tuple[Card, ...] | None, holdings: Iterable[Holding] = (), named: bool = True, wait: float = 0
    ) -> Evidence:
        self.clock += wait
        scan = reader.scan(self.node.root, Path("/proc"), [], by_mount=False)
        scan = scan._replace(holdings={h.pid: h for h in holdings})
        pods = PodFile(self.node.pods_file()).read() if named else None
        return self.joiner.join(scan, cards, pods, self.clock)


@pytest.fixture
def watcher(node: Node) -> Watcher:
    return Watcher(node)


def holding(number: int, pid: int, container: int = 0) -> Holding:
    return Holding(pid, uid(number), f"{number:032x}{container:032x}", "")


def only(evidence: Evidence) -> Row:
    assert len(evidence.rows) == 1, evidence.rows
    return evidence.rows[0]


def quick_start(node: Node) -> None:
    pod = node.pod(1, "train", ASKED)
    node.quota(pod, limit="4147m", gpu_memory="4096")
    node.region(pod, [WrittenDevice(refusals=1, largest=2 << 30, last_ns=5)], SLOTS)


def test_promised_enforced_charged_and_real_stand_side_by_side(node: Node, watcher: Watcher) -> None:
    quick_start(node)
    row = only(watcher.look((card({71: 3174 * MIB}),), [holding(1, 71)]))
    assert row.promise is not None
    assert (row.namespace, row.pod, row.container, row.vdevice) == ("team-a", "train", "main", "0")
    assert (row.promise.promised, row.promise.source, row.enforced) == (4147 * MIB, "kai", 4147 * MIB)
    assert (row.tracked, row.real, row.unaccounted, row.state) == (3174 * MIB, 3174 * MIB, 0, "enforced")


def test_the_card_is_believed_over_the_ledger_after_the_grace_time(node: Node, watcher: Watcher) -> None:
    quick_start(node)
    cards, holders = (card({71: 3174 * MIB, 72: 500 * MIB}),), [holding(1, 71), holding(1, 72)]
    assert only(watcher.look(cards, holders)).state == "enforced"
    row = only(watcher.look(cards, holders, wait=11))
    assert (row.state, row.unaccounted) == ("bypassed", 500 * MIB)


def test_a_region_that_was_taken_away_is_a_bypass_and_one_that_never_was_is_not_loaded(
    node: Node, watcher: Watcher
) -> None:
    quick_start(node)
    node.pod(2, "static", ASKED)
    cards = (card({71: 3174 * MIB, 72: 500 * MIB}),)
    holders = [holding(1, 71), holding(2, 72)]
    watcher.look(cards, holders)
    (node.volume(uid(1)) / "main" / "region").unlink()
    watcher.look(cards, holders)
    rows = {row.pod: row.state for row in watcher.look(cards, holders, wait=11).rows}
    assert rows == {"train": "bypassed", "static": "not_loaded"}


def test_a_pod_that_was_never_injected_is_not_loaded_before_it_takes_anything(node: Node, watcher: Watcher) -> None:
    node.pod(1, "missed", ASKED, injected=False)
    row = only(watcher.look((card(),)))
    assert (row.state, row.device_uuid) == ("not_loaded", T4), "one card on the node: it must be on that one"


def test_kais_groups_tell_the_card_of_a_share_that_uses_none_yet(node: Node, watcher: Watcher) -> None:
    node.pod(1, "waiting", ASKED)
    node.pods[-1]["metadata"]["labels"] = {"runai-gpu-group": "g1"}
    node.pod(2, "reservation")
    node.pods[-1]["metadata"] |= {
        "labels": {"runai-gpu-group": "g1"},
        "annotations": {"run.ai/reserve_for_gpu_index": SECOND},
    }
    evidence = watcher.look((card(), card(uuid=SECOND, index="1")))
    assert only(evidence).device_uuid == SECOND
    assert [c.promised for c in evidence.cards] == [0, 4096 * MIB]


def test_memory_of_nobodys_processes_is_told_apart(node: Node, watcher: Watcher) -> None:
    """Unknown processes, pods without a share, a share's sidecar, and what NVML lists under no process."""
    quick_start(node)
    node.pods[-1]["spec"]["containers"].append({"name": "sidecar"})
    node.pods[-1]["status"]["containerStatuses"].append(
        {"name": "sidecar", "containerID": f"containerd://{1:032x}{1:032x}"}
    )
    node.pod(2, "free")
    processes: dict[int, int | None] = {71: 3174 * MIB, 72: 30 * MIB, 73: 40 * MIB, 74: 50 * MIB, 75: None}
    holders = [holding(1, 71), holding(1, 72, container=1), holding(2, 73)]
    evidence = watcher.look((card(processes, used=4000 * MIB),), holders)
    row = evidence.cards[0]
    assert (row.unknown, row.unshared, row.unlisted) == (50 * MIB, 70 * MIB, (4000 - 3294) * MIB)
    assert {(r.pod, r.container, r.real) for r in evidence.rows if not r.state} == {
        ("train", "sidecar", 30 * MIB),
        ("free", "main", 40 * MIB),
    }


def test_several_devices_containers_and_processes_keep_apart(node: Node, watcher: Watcher) -> None:
    pod = node.pod(1, "wide", {**ASKED, "gpu-fraction-container-name": "b"}, containers=("a", "b"))
    slots = {0: WrittenSlot([(1, 2, 3), (10, 20, 30)]), 1: WrittenSlot([(100, 200, 300), (0, 0, 0)])}
    node.region(
        pod, [WrittenDevice(limit=4096 * MIB), WrittenDevice(uuid=SECOND, limit=4096 * MIB)], slots, container="b"
    )
    rows = watcher.look((card(), card(uuid=SECOND, index="1"))).rows
    assert [(r.container, r.vdevice, r.device_uuid, r.tracked) for r in rows] == [
        ("b", "0", T4, 606),
        ("b", "1", SECOND, 60),
    ]
    assert all(r.promise and r.promise.promised == 4096 * MIB for r in rows), "the share is meant for each device"


def test_an_ended_pod_is_gone_although_its_folder_is_still_there(node: Node, watcher: Watcher) -> None:
    quick_start(node)
    node.pods[0]["status"]["phase"] = "Succeeded"
    assert watcher.look((card(),)).rows == ()
    node.pods.clear()
    assert watcher.look((card(),)).rows == ()


def test_a_crashed_container_keeps_its_place(node: Node, watcher: Watcher) -> None:
    quick_start(node)
    node.close()
    row = only(watcher.look((card(),)))
    assert (row.tracked, row.enforced, row.state) == (0, 4147 * MIB, "enforced")


def test_each_missing_source_costs_only_what_it_would_have_told(node: Node, watcher: Watcher) -> None:
    quick_start(node)
    row = only(watcher.look(None))
    assert (row.real, row.unaccounted, row.tracked, row.state) == (None, None, 3174 * MIB, "enforced")
    row = only(watcher.look((card({71: 3174 * MIB}),), [holding(1, 71)], named=False))
    assert (row.namespace, row.pod, row.container) == ("", uid(1), "main")
    assert row.promise is not None
    assert row.promise.promised == 4147 * MIB, "the files say so too"
    nothing = Scan(frozenset(), (), {}, {}, {})
    pods: dict[str, Pod] = dict(PodFile(node.pods_file()).read())
    row = only(watcher.joiner.join(nothing, (card(),), pods, 2000))
    assert (row.ledger, row.promise and row.promise.promised, row.state) == (None, 4096 * MIB, "unused")


def test_a_bad_region_is_listed_and_spares_the_others(node: Node, watcher: Watcher) -> None:
    quick_start(node)
    other = node.pod(2, "vandal", ASKED)
    node.region(other, [WrittenDevice()]).write_bytes(b"junk")
    evidence = watcher.look((card(),))
    assert evidence.bad_regions == (("team-a", "vandal", "main", "size"),)
    assert {row.pod: row.tracked for row in evidence.rows} == {"train": 3174 * MIB, "vandal": 0}


def test_launches_are_dated_when_their_counter_grows(node: Node, watcher: Watcher) -> None:
    pod = node.pod(1, "train", ASKED)
    node.region(pod, [WrittenDevice()], {0: WrittenSlot([(1, 1, 1)], [0])})
    assert only(watcher.look((card(),))).last_kernel is None, "nothing was ever launched"
    node.region(pod, [WrittenDevice()], {0: WrittenSlot([(1, 1, 1)], [4])}, alive=False)
    assert only(watcher.look((card(),))).last_kernel == 0
    assert only(watcher.look((card(),), wait=7)).last_kernel == 7
    node.region(pod, [WrittenDevice()], {0: WrittenSlot([(1, 1, 1)], [5])}, alive=False)
    assert only(watcher.look((card(),), wait=1)).last_kernel == 0


def test_load_is_a_process_own_or_else_shared_among_those_that_launched(node: Node, watcher: Watcher) -> None:
    quick_start(node)
    other = node.pod(2, "idle", ASKED)
    node.region(other, [WrittenDevice()], {0: WrittenSlot([(1, 1, 1)], [0])})
    loads = {r.pod: r.utilization for r in watcher.look((card(),)).rows}
    assert loads == {"train": 0.5, "idle": 0.0}
    own = card({71: 3174 * MIB, 72: 1}, process_utilization={71: 0.25})
    loads = {r.pod: r.utilization for r in watcher.look((own,), [holding(1, 71), holding(2, 72)]).rows}
    assert loads == {"train": 0.25, "idle": 0.0}


def test_promises_are_summed_per_card(node: Node, watcher: Watcher) -> None:
    for i in range(5):
        node.region(node.pod(i, f"p{i}", ASKED), [WrittenDevice(limit=4096 * MIB)])
    assert watcher.look((card(),)).cards[0].promised == 5 * 4096 * MIB > T4_BYTES
