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


def scrape_until(
    url: str, name: str, pods: Sequence[str], *, label: str = "", value: float | None = None, seconds: float = 30
) -> dict[str, float]:
    """A scrape in which each pod has that metric (with that value); a monitor may need a look or two for it."""
    end = time.monotonic() + seconds
    while True:
        samples = scrape(url)
        found = {pod: sample(samples, name, pod, label) for pod in pods}
        missing = [pod for pod, seen in found.items() if seen is None or value not in (None, seen)]
        if not missing:
            return samples
        if time.monotonic() > end:
            raise NotAsSaidError(f"the monitor doesn't show {name} {label} as it should for {', '.join(missing)}")
        time.sleep(0.2)


def sample(samples: Mapping[str, float], name: str, pod: str, label: str = "") -> float | None:
    """The value of a metric for a pod (and one more label, such as `a="b"`), None if it isn't there."""
    wanted = re.compile(rf'{name}\{{.*\bpod="{re.escape(pod)}".*{re.escape(label)}')
    return next((value for key, value in samples.items() if wanted.match(key)), None)
