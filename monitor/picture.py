"""The newest report as JSON: what /evidence serves and `top` shows. Sizes in bytes, null where nobody can tell."""

from typing import Any

from monitor.evidence import CardRow, Row
from monitor.metrics import Report


def picture(report: Report) -> dict[str, Any]:
    """Make the JSON object of a report."""
    return {
        "cards": [_card(row) for row in report.evidence.cards],
        "containers": [_container(row) for row in report.evidence.rows],
        "bad_regions": [
            dict(zip(("namespace", "pod", "container", "problem"), bad, strict=True))
            for bad in report.evidence.bad_regions
        ],
        "sources": {name: {"up": health.up, "errors": health.errors} for name, health in report.sources.items()},
    }


def _card(row: CardRow) -> dict[str, Any]:
    card = row.card
    return {
        "index": card.index,
        "uuid": card.uuid,
        "name": card.name,
        "total_bytes": card.total,
        "used_bytes": card.used,
        "utilization_ratio": card.utilization,
        "promised_bytes": row.promised,
        "unmanaged_bytes": {"unknown": row.unknown, "no_share": row.unshared, "unlisted": row.unlisted},
    }


def _container(row: Row) -> dict[str, Any]:
    ledger = row.ledger
    return {
        "namespace": row.namespace,
        "pod": row.pod,
        "pod_uid": row.pod_uid,
        "container": row.container,
        "device_uuid": row.device_uuid,
        "promised_bytes": row.promise.promised if row.promise else None,
        "promised_by": row.promise.source if row.promise else None,
        "enforced_bytes": row.enforced,
        "tracked_bytes": row.tracked if ledger else None,
        "real_bytes": row.real,
        "unaccounted_bytes": row.unaccounted,
        "peak_bytes": ledger.peak if ledger else None,
        "refusals": ledger.refusals if ledger else None,
        "refused_largest_bytes": ledger.refused_largest if ledger and ledger.refusals else None,
        "refused_last_unix_seconds": ledger.refused_last_ns / 1e9 if ledger and ledger.refusals else None,
        "processes": row.processes,
        "state": row.state or None,
    }
