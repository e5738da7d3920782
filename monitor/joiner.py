"""Joins what the sources say into one picture of the node.

Each source may be missing: a container whose pod nobody can name goes by its uid, without NVML nothing is "real".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from monitor.cards import Card
from monitor.evidence import UNSHARED, CardRow, Evidence, Row
from monitor.messages import Ledger, RegionState, Scan
from monitor.pods import Pod
from monitor.quota import Promise, Share, parse_fraction, parse_memory, promise
from monitor.states import Facts, Patience, judge


@dataclass(slots=True)
class _Container:
    """One container while it is joined."""

    pod: Pod
    name: str
    share: Share | None
    region: RegionState | None = None
    real: dict[str, int] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Look:
    """What is the same for all containers of one picture."""

    cards: Mapping[str, Card]
    groups: Mapping[str, str]  # KAI's group of a share -> UUID of its card
    nvml: bool  # whether NVML answered
    clock: float


class Joiner:
    """Builds one Evidence after the other and keeps what only time tells: grace, last launches, regions once seen."""

    def __init__(self, grace_seconds: float, slack_bytes: int) -> None:
        self._patience = Patience(grace_seconds)
        self._slack = slack_bytes
        self._launches: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._moved: set[tuple[str, str, str]] = set()
        self._had_region: set[tuple[str, str]] = set()

    def join(
        self, scan: Scan, cards: tuple[Card, ...] | None, pods: Mapping[str, Pod] | None, clock: float
    ) -> Evidence:
        """Join one look at each source; None is a source that can't be asked. `clock` is monotonic, in seconds."""
        containers = _containers(scan, pods)
        unknown: dict[str, int] = {}
        for card in cards or ():
            self._attribute(card, scan, pods, containers, unknown)
        self._had_region |= {key for key, c in containers.items() if c.region and not c.region.problem}
        self._note_launches(containers, clock)
        look = _Look(
            cards={card.uuid: card for card in cards or ()},
            groups={g: pod.reserved_uuid for pod in (pods or {}).values() if pod.reserved_uuid for g in pod.gpu_groups},
            nvml=cards is not None,
            clock=clock,
        )
        rows: list[Row] = []
        for key in sorted(containers, key=lambda k: (containers[k].pod.namespace, containers[k].pod.name, k)):
            rows += self._rows(containers[key], scan.quotas.get(key[0], {}), look)
        self._patience.forget_others((row.pod_uid, row.container, row.device_uuid) for row in rows)
        self._had_region &= containers.keys()
        problems = (
            (c.pod.namespace, c.pod.name, c.name, c.region.problem)
            for c in containers.values()
            if c.region and c.region.problem not in ("", "absent")
        )
        return Evidence(tuple(rows), tuple(_card_rows(cards or (), rows, unknown)), tuple(sorted(problems)))

    @staticmethod
    def _attribute(
        card: Card,
        scan: Scan,
        pods: Mapping[str, Pod] | None,
        containers: dict[tuple[str, str], _Container],
        unknown: dict[str, int],
    ) -> None:
        for pid, used in card.processes.items():
            holding = scan.holdings.get(pid)
            pod = _pod(holding.pod_uid, scan, pods) if holding else None
            name = (holding.container or (pod.container_of(holding.container_id) if pod else "")) if holding else ""
            if pod is None or not name:
                unknown[card.uuid] = unknown.get(card.uuid, 0) + (used or 0)
                continue
            container = containers.setdefault((pod.uid, name), _Container(pod, name, None))
            container.real[card.uuid] = container.real.get(card.uuid, 0) + (used or 0)
            if card.process_utilization is not None:
                load = card.process_utilization.get(pid, 0.0)
                container.load[card.uuid] = container.load.get(card.uuid, 0.0) + load

    def _note_launches(self, containers: Mapping[tuple[str, str], _Container], clock: float) -> None:
        """Date the launch counters: one that grew, or is new and not zero, was used just now."""
        dated: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._moved = set()
        for (uid, name), container in containers.items():
            for ledger in container.region.ledgers if container.region else ():
                key = uid, name, ledger.uuid
                count, when = self._launches.get(key, (0, clock))
                if ledger.launches > count:
                    when = clock
                    self._moved.add(key)
                if ledger.launches or key in self._launches:
                    dated[key] = ledger.launches, when
        self._launches = dated

    def _rows(self, container: _Container, quota: Mapping[str, str], look: _Look) -> Iterable[Row]:
        region, pod, share = container.region, container.pod, container.share
        ledgers = {ledger.uuid: (str(i), ledger) for i, ledger in enumerate(region.ledgers if region else ())}
        uuids = [*ledgers, *(uuid for uuid in container.real if uuid not in ledgers)]
        if share and not uuids:
            assigned = [look.groups[group] for group in pod.gpu_groups if group in look.groups]
            uuids = assigned or (list(look.cards) if len(look.cards) == 1 else [""])
        for uuid in uuids:
            vdevice, ledger = ledgers.get(uuid, ("", None))
            card = look.cards.get(uuid)
            physical = card.total if card and card.total else (ledger.physical or None if ledger else None)
            promised = promise(share, quota.get("limit"), physical) if share else None
            # A card in the ledger that NVML doesn't list is one that NVML can't speak for.
            real = container.real.get(uuid, 0) if look.nvml and (card or not uuid) else None
            facts = self._facts(container, promised, ledger, physical, real)
            last = self._launches.get((pod.uid, container.name, uuid))
            yield Row(
                pod_uid=pod.uid,
                namespace=pod.namespace,
                pod=pod.name,
                container=container.name,
                vdevice=vdevice,
                device_uuid=uuid,
                promise=promised,
                ledger=ledger,
                real=real,
                state=self._state(container, uuid, facts, look.clock),
                processes=region.processes if region else 0,
                utilization=self._load(container, card) if ledger else None,
                last_kernel=look.clock - last[1] if last else None,
            )

    def _facts(
        self,
        container: _Container,
        promised: Promise | None,
        ledger: Ledger | None,
        physical: int | None,
        real: int | None,
    ) -> Facts:
        region, pod = container.region, container.pod
        return Facts(
            injected=pod.injected if pod.namespace else None,
            promised=promised.promised if promised else None,
            disbelieved=bool((promised and promised.disbelieved) or (ledger and ledger.unbelieved)),
            region=region.problem if region else "absent",
            seen_before=(pod.uid, container.name) in self._had_region,
            processes=region.processes if region else 0,
            listed=ledger is not None,
            limit=ledger.limit if ledger and ledger.limit >= 0 else None,
            source=ledger.source if ledger else "none",
            physical=physical,
            tracked=ledger.tracked if ledger else 0,
            real=real,
        )

    def _state(self, container: _Container, uuid: str, facts: Facts, clock: float) -> str:
        if container.share is None:
            return UNSHARED
        key = container.pod.uid, container.name, uuid
        return self._patience.settle(key, *judge(facts, self._slack), clock)

    def _load(self, container: _Container, card: Card | None) -> float | None:
        """Load of the card by this container: by NVML's own figure a process, else the card's, if it alone launched."""
        if card is None:
            return None
        if card.process_utilization is not None:
            return min(1.0, container.load.get(card.uuid, 0.0))
        if (container.pod.uid, container.name, card.uuid) not in self._moved:
            return 0.0
        return (card.utilization or 0.0) / sum(1 for key in self._moved if key[2] == card.uuid)


def _containers(scan: Scan, pods: Mapping[str, Pod] | None) -> dict[tuple[str, str], _Container]:
    """All containers with a region's folder or with a share."""
    found: dict[tuple[str, str], _Container] = {}
    for region in scan.regions:
        pod = _pod(region.pod_uid, scan, pods)
        if pod is None:
            continue  # it has ended, its folder is not gone yet
        share = pod.share
        if pods is None and share is None:
            share = _share_of_files(scan.quotas.get(pod.uid, {}), region.container)
        mine = share if share and share.container == region.container else None
        found[pod.uid, region.container] = _Container(pod, region.container, mine, region)
    for pod in (pods or {}).values():
        if pod.share:
            found.setdefault((pod.uid, pod.share.container), _Container(pod, pod.share.container, pod.share))
    return found


def _pod(uid: str, scan: Scan, pods: Mapping[str, Pod] | None) -> Pod | None:
    """The pod with that uid; where nobody can name pods, one that has a folder goes by its uid."""
    if pods is not None:
        return pods.get(uid)
    return Pod(uid=uid, namespace="", name=uid) if uid in scan.pods else None


def _share_of_files(quota: Mapping[str, str], container: str) -> Share | None:
    memory = parse_memory(quota.get("gpu-memory", ""))
    fraction = parse_fraction(quota.get("gpu-fraction", ""))
    return Share(container, memory, fraction) if memory or fraction else None


def _card_rows(cards: tuple[Card, ...], rows: list[Row], unknown: Mapping[str, int]) -> Iterable[CardRow]:
    for card in cards:
        here = [row for row in rows if row.device_uuid == card.uuid]
        listed = sum(used or 0 for used in card.processes.values())
        yield CardRow(
            card=card,
            promised=sum(row.promise.promised for row in here if row.promise),
            unknown=unknown.get(card.uuid, 0),
            unshared=sum(row.real or 0 for row in here if row.state == UNSHARED),
            unlisted=max(0, (card.used or 0) - listed),
        )
