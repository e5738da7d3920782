"""The table's kind of row, and the page that prometheus_client makes of such rows' samples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE = exposition.CONTENT_TYPE_PLAIN_0_0_4
Family = CounterMetricFamily | GaugeMetricFamily
FAMILIES: dict[str, type[Family]] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table of metrics: the page's HELP and TYPE, the README's row."""

    name: str
    kind: str  # gauge or counter
    labels: tuple[str, ...]
    text: str


class Page(Collector):
    """One page being built: families made afresh for each scrape, so that no series outlives what it tells of."""

    def __init__(self, table: Iterable[Metric]) -> None:
        self._families = {m.name: FAMILIES[m.kind](m.name, m.text, labels=m.labels) for m in table}

    def add(self, name: str, labels: Sequence[str], value: float | None) -> None:
        """Add a sample with these values of its labels, in the table's order; None is none."""
        if value is not None:
            self._families[name].add_metric(labels, value)

    def collect(self) -> Iterable[Family]:
        """Give the metrics that have a sample, in the order of the table."""
        return (family for family in self._families.values() if family.samples)

    def render(self) -> bytes:
        """The whole page, in Prometheus' text format."""
        return exposition.generate_latest(self)
