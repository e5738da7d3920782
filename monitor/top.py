"""`python -m monitor top`: the node in the terminal: promised, enforced, really used and refused, by container."""

import argparse
import json
import shutil
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

MIB = 1 << 20
BAR_CELLS = 20
PARTS = " ▏▎▍▌▋▊▉█"
GOOD, BAD, DIM, END = "\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[0m"
CLEAR = "\x1b[H\x1b[2J"
TITLES = ("POD / CONTAINER", "GPU", "PROMISED", "ENFORCED", "REALLY USED", "OF QUOTA", "REFUSED", "STATE")
LEFT = (0, 1, 5, 7)  # columns that are no numbers
TIMEOUT_SECONDS = 15


def bar(ratio: float, cells: int = BAR_CELLS) -> str:
    """A bar for a ratio of 0 to 1, in eighths of a cell."""
    eighths = round(max(0.0, min(1.0, ratio)) * cells * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (PARTS[rest] if rest else "")).ljust(cells, "·")


def size(value: int | None) -> str:
    """A size in MiB, a dash where there is none."""
    return "-" if value is None else f"{value / MIB:.0f} MiB"


def table(picture: Mapping[str, Any], colour: bool = False, wide: int = 160) -> str:
    """Draw what /evidence tells, ready to print."""
    lines = [_card(card, wide) for card in picture["cards"]]
    rows = [_row(entry, picture["cards"]) for entry in picture["containers"]]
    widths = [max(len(line[i]) for line in (TITLES, *rows)) for i in range(len(TITLES))]
    lines += ["", _line(TITLES, widths)]
    for entry, row in zip(picture["containers"], rows, strict=True):
        text = _line(row, widths)
        if colour and entry["state"]:
            shade = GOOD if entry["state"] == "enforced" else DIM if entry["state"] == "unused" else BAD
            text = f"{shade}{text}{END}"
        lines.append(text)
    if not rows:
        lines.append("no container with a share on this node")
    lines += [
        f"unreadable ledger: {bad['namespace']}/{bad['pod']} {bad['container']}: {bad['problem']}"
        for bad in picture["bad_regions"]
    ]
    down = [name for name, health in picture["sources"].items() if not health["up"]]
    if down:
        lines.append(f"no answer from: {', '.join(down)} (what they would tell is missing above)")
    return "\n".join(lines) + "\n"


def _card(card: Mapping[str, Any], wide: int) -> str:
    total, used = card["total_bytes"], card["used_bytes"]
    load = "" if card["utilization_ratio"] is None else f"  load {card['utilization_ratio']:.0%}"
    if not total or used is None:
        return f"GPU {card['index']}  {card['name']}  memory unknown{load}"
    share = f"  promised {card['promised_bytes'] / total:.0%}"
    others = sum(card["unmanaged_bytes"].values())
    loose = f"  without a share {size(others)}" if others else ""
    cells = max(10, min(40, wide - 80))
    drawn = f"{bar(used / total, cells)} {size(used)} of {size(total)}"
    return f"GPU {card['index']}  {card['name']}  {drawn}{share}{load}{loose}"


def _row(entry: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    index = next((card["index"] for card in cards if card["uuid"] == entry["device_uuid"]), "?")
    enforced, used = entry["enforced_bytes"], entry["real_bytes"]
    if used is None:
        used = entry["tracked_bytes"]
    ratio = used / enforced if enforced and used is not None else None
    refused = "-"
    if entry["refusals"] is not None:
        largest = f" (largest {size(entry['refused_largest_bytes'])})" if entry["refusals"] else ""
        refused = f"{entry['refusals']}{largest}"
    where = f"{entry['namespace']}/{entry['pod']}" if entry["namespace"] else entry["pod"]
    return (
        f"{where} / {entry['container']}",
        index,
        size(entry["promised_bytes"]),
        size(enforced),
        size(used),
        "-" if ratio is None else f"{bar(ratio)} {ratio:4.0%}",
        refused,
        entry["state"] or "no share",
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    pairs = enumerate(zip(cells, widths, strict=True))
    return "  ".join(c.ljust(width) if i in LEFT else c.rjust(width) for i, (c, width) in pairs).rstrip()


def fetch(url: str) -> dict[str, Any]:
    """Ask a running monitor. Raises OSError, ValueError."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url} is no http address")
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 (checked above)
        picture = json.load(answer)
    if not isinstance(picture, dict):
        raise ValueError(f"{url} is no monitor's")  # noqa: TRY004
    return picture


def show(url: str) -> None:
    """Print the table of a running monitor once. Raises OSError, ValueError."""
    sys.stdout.write(table(fetch(url), sys.stdout.isatty(), shutil.get_terminal_size((160, 24)).columns))


def main(arguments: Sequence[str]) -> int:
    """Run the command. 1 if the monitor can't be asked."""
    parser = argparse.ArgumentParser(prog="python -m monitor top", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:9394/evidence", help="a monitor's /evidence (%(default)s)")
    parser.add_argument("--once", action="store_true", help="print it once and end")
    parser.add_argument("--json", action="store_true", help="print the monitor's own JSON once and end")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between two pictures (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        if given.json:
            sys.stdout.write(json.dumps(fetch(given.url), indent=1) + "\n")
            return 0
        if given.once:
            show(given.url)
            return 0
        while True:
            columns = shutil.get_terminal_size((160, 24)).columns
            sys.stdout.write(CLEAR + table(fetch(given.url), sys.stdout.isatty(), columns))
            sys.stdout.flush()
            time.sleep(max(0.2, given.interval))
    except (OSError, ValueError) as e:
        sys.stderr.write(f"{given.url}: {e}\nIs the monitor running there? --url names another one.\n")
        return 1
    except KeyboardInterrupt:
        return 0
