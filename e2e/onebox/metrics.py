"""A page of metrics as a monitor serves it, read by somebody who watches."""

import re
import time
import urllib.request
from collections.abc import Mapping, Sequence

from e2e.onebox.story import NotAsSaidError


def scrape(url: str) -> dict[str, float]:
    """One scrape: sample (name with labels) -> value."""
    with urllib.request.urlopen(url, timeout=10) as page:  # noqa: S310 — http on this machine
        text = page.read().decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def scrape_until(url: str, name: str, pods: Sequence[str], seconds: float = 20) -> dict[str, float]:
    """A scrape in which each pod has that metric; a monitor may need a look or two for it."""
    end = time.monotonic() + seconds
    while True:
        samples = scrape(url)
        missing = [pod for pod in pods if sample(samples, name, pod) is None]
        if not missing:
            return samples
        if time.monotonic() > end:
            raise NotAsSaidError(f"the monitor shows no {name} for {', '.join(missing)}")
        time.sleep(0.2)


def sample(samples: Mapping[str, float], name: str, pod: str, label: str = "") -> float | None:
    """The value of a metric for a pod (and one more label, such as `a="b"`), None if it isn't there."""
    wanted = re.compile(rf'{name}\{{.*\bpod="{re.escape(pod)}".*{re.escape(label)}')
    return next((value for key, value in samples.items() if wanted.match(key)), None)
