"""What the demo tells, step by step: each claim is checked against the card, the pod's own words or the monitor."""

import difflib
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import yaml

from e2e.onebox.chain import CARD_LABEL_MIB, Chain, load_manifest
from e2e.onebox.metrics import sample, scrape_until
from e2e.onebox.pod import Pod
from e2e.onebox.story import Story

MIB, GIB = 1 << 20, 1 << 30
CONTEXT_BYTES = 102 * MIB
LIMIT_BYTES = 4147 * MIB
STEPS = 10
BYPASSED = 'state="bypassed"'
INTRODUCTION = (
    "Two pods share one GPU of 15360 MiB. Each is promised 4096 MiB, and each tries to take more.",
    "Real here: libsync, webhook, monitor, libvgpu.so, /etc/ld.so.preload, and the containers' namespaces.",
    "Played: the card and its driver (csrc/simgpu), API server, KAI and kubelet (e2e/onebox).",
    "Each ✓ is checked on this machine, by the card's own account wherever memory is meant; the first ✗ ends it.",
)
# Who changes the pod on its way in, and what for.
STAGES = {
    "our webhook": "adds the library, its preload file, a ledger (vgpu-region) and the quota as far as it is known",
    "KAI's webhook": "adds the ConfigMap in which its binder will write the limit",
    "our webhook, called again": "adds that limit to the quota, where it decides before the annotation",
}
SHOWN_METRICS = (
    "hami_host_gpu_memory_used_bytes",
    "hami_vgpu_memory_limit_bytes",
    "hami_vgpu_memory_used_bytes",
    "hami_vgpu_memory_context_bytes",
    "hami_vgpu_memory_buffer_bytes",
    "kai_isolator_refusals_total",
)


def tell(chain: Chain, story: Story) -> None:
    """The story. NotAsSaidError where the machine contradicts it."""
    for line in INTRODUCTION:
        story.line(line)
    prepare(chain, story)
    first = admit(chain, story)
    run_first(chain, story, first)
    second = run_second(chain, story)
    monitor(chain, story, [first, second])
    show_way_round(chain, story)
    conclude(chain, story, [first, second])


def prepare(chain: Chain, story: Story) -> None:
    """A card, and the library on the node."""
    story.step("One simulated GPU")
    card = chain.node.truth()[0]
    story.show(f"{card['name']}, {card['total_bytes'] // MIB} MiB, {card['uuid']}")
    story.check(card["used_bytes"] == 0, "nothing on it is in use")

    story.step("libsync prepares the node")
    story.show(chain.prepare_node())
    installed = sorted(path.name for path in (chain.node.library_base / "abi-1").iterdir())
    expected = ["ld.so.preload", "libvgpu.so", "manifest.json"]
    story.check(installed == expected, "library, preload file and manifest are in place")


def admit(chain: Chain, story: Story) -> Pod:
    """The quick-start pod through both webhooks; what they made of it, and KAI's number for it."""
    story.step("The webhook comes up under TLS, and the quick-start pod goes in (e2e/quickstart.yaml)")
    manifest = load_manifest()
    chain.start_webhook()
    story.show(f"{chain.admission.url}\n\n{to_yaml(manifest)}")

    story.step("The patch comes out; KAI's webhook changes the pod too, and ours is called again")
    pod = chain.admit(manifest)
    for (_, before), (who, after) in pairwise(chain.admission.stages):
        story.line(f"  {who} {STAGES[who]}:" if before != after else f"  {who}, changes nothing")
        lines = difflib.unified_diff(to_yaml(before).splitlines(), to_yaml(after).splitlines(), n=1, lineterm="")
        story.diff(line for line in lines if not line.startswith(("---", "+++")))
    limits = [
        data["CUDA_DEVICE_MEMORY_LIMIT"] for data in pod.config_maps.values() if "CUDA_DEVICE_MEMORY_LIMIT" in data
    ]
    story.line()
    story.check(
        limits == ["4147m"], f"KAI rounds 4096 of {CARD_LABEL_MIB} MiB to 0.27 of the card: 4147m, by ConfigMap"
    )
    ours = sorted(volume["name"] for volume in pod.spec["volumes"] if volume["name"].startswith("vgpu-"))
    expected = ["vgpu-library", "vgpu-preload", "vgpu-quota", "vgpu-region"]
    story.check(ours == expected, "called twice, our webhook put in each of its volumes once")
    return pod


def run_first(chain: Chain, story: Story, pod: Pod) -> None:
    """The pod's own words, and the reverse test: what is beyond the quota is refused."""
    story.step("The pod runs: the three lines")
    pod.start()
    chain.write_pods_file()
    lines = pod["main"].wait_for_log("held ").splitlines()
    story.show("\n".join(lines[:3]))
    uuid = chain.node.truth()[0]["uuid"]
    story.check(lines[0] == "limit=4147m", "the variable holds KAI's limit")
    story.check(lines[1] == "/usr/local/vgpu/libvgpu.so", "every program in the container is made to load the library")
    story.check(lines[2] == f"{uuid}, 4147 MiB", "the container sees a card as large as its share")

    story.step("The reverse test: it takes 3 GiB, asks for 2 GiB more, gives back; then holds 3 GiB")
    story.show("\n".join(lines[3:]))
    story.check("granted  3 GiB" in lines, "3 GiB granted")
    asked = 5 * GIB + CONTEXT_BYTES
    refused = "2 GiB more refused: with the context's 102 MiB that would be 5222 MiB, of 4147 MiB"
    story.check(f"Device 0 OOM {asked} / {LIMIT_BYTES}" in lines, refused)
    held = chain.held_bytes(pod)
    story.check(held == 3 * GIB + CONTEXT_BYTES, "the card says: 3 GiB and the context, nothing more")


def run_second(chain: Chain, story: Story) -> Pod:
    """The neighbour's share is untouched."""
    story.step("A second pod on the same card still gets its own 3 GiB")
    pod = chain.run(load_manifest(name="neighbour"))
    lines = pod["main"].wait_for_log("held ").splitlines()
    story.show("\n".join(lines[3:]))
    story.check("granted  3 GiB" in lines, "3 GiB granted to the neighbour")
    story.check(chain.held_bytes(pod) == 3 * GIB + CONTEXT_BYTES, "the card says so too")
    return pod


def monitor(chain: Chain, story: Story, pods: list[Pod]) -> None:
    """What the monitor exports of both."""
    story.step("The monitor shows both")
    story.show(chain.start_monitor())
    story.line()
    names = [pod.name for pod in pods]
    samples = scrape_until(chain.monitor_url, "hami_vgpu_memory_limit_bytes", names)
    for key, value in samples.items():
        if key.startswith(SHOWN_METRICS):
            name, labels = key.rstrip("}").split("{")
            shown = [label for label in labels.split(",") if label.startswith(("pod=", "container=", "device_type="))]
            story.show(f"{name}{{…{','.join(shown)}}} {value:.0f}")
    story.line("\n    python -m monitor top --once:\n")
    story.show(chain.monitor_top())
    for pod in pods:
        limit = sample(samples, "hami_vgpu_memory_limit_bytes", pod.name)
        used = sample(samples, "hami_vgpu_memory_used_bytes", pod.name)
        story.check(limit == LIMIT_BYTES, f"{pod.name}: limit {LIMIT_BYTES // MIB} MiB")
        story.check(used == chain.held_bytes(pod), f"{pod.name}: what the library charged is what the card holds")
        enforced = sample(samples, "kai_isolator_state", pod.name, 'state="enforced"')
        story.check(enforced == 1, f"{pod.name}: the monitor finds promise, limit and card in agreement")


def conclude(chain: Chain, story: Story, pods: list[Pod]) -> None:
    """The last table. What is really used is the card's word, what was refused the pod's own log."""
    story.step("Promise and reality")
    rows = []
    samples = scrape_until(chain.monitor_url, "hami_vgpu_memory_limit_bytes", [pod.name for pod in pods])
    for pod in pods:
        limit = sample(samples, "hami_vgpu_memory_limit_bytes", pod.name) or 0
        refusals = re.findall(r"^Device 0 OOM \d+ / \d+$", pod["main"].logs(), re.MULTILINE)
        promised = pod.manifest["metadata"]["annotations"]["gpu-memory"]
        used = chain.held_bytes(pod) // MIB
        rows.append((pod.name, f"{promised} MiB", f"{limit / MIB:.0f} MiB", f"{used} MiB", f"{len(refusals)} × 2 GiB"))
    story.table(("pod", "promised", "enforced", "really used", "refused"), rows)
    card = chain.node.truth()[0]
    used, total = card["used_bytes"] // MIB, card["total_bytes"] // MIB
    story.line("\n    promised: the annotation, which KAI rounds up to the limit that is enforced (4147 MiB)")
    story.line(f"    the card: {used} of {total} MiB in use, {total - used} MiB free\n")
    for pod in pods:
        counted = sample(samples, "kai_isolator_refusals_total", pod.name)
        story.check(counted == 1, f"{pod.name}: refused once, and the monitor counts the same")
    story.check(card["used_bytes"] == 2 * (3 * GIB + CONTEXT_BYTES), "nobody else holds memory of the card")


def show_way_round(chain: Chain, story: Story) -> None:
    """A tenant who throws the ledger away while its first process makes no calls gets more; the monitor says so."""
    story.step("It is a lock, not a wall: one way round, and who sees it")
    manifest = load_manifest(name="cheat", annotations={"gpu-memory": "2048"})
    manifest["spec"]["containers"][0]["args"] = ["exec vgpu-probe hold 1GiB"]
    pod = chain.run(manifest)
    pod["main"].wait_for_log("held ")
    samples = scrape_until(chain.monitor_url, "kai_isolator_enforced_bytes", [pod.name])
    limit = sample(samples, "kai_isolator_enforced_bytes", pod.name) or 0
    cheat = "rm /run/vgpu/region && exec vgpu-probe hold 1536MiB"
    story.show(f"pod {pod.name}, limit {limit / MIB:.0f} MiB, holds 1 GiB; in it: {cheat}")
    pod["main"].exec_start("sh", "-c", cheat)
    samples = scrape_until(chain.monitor_url, "kai_isolator_state", [pod.name], label=BYPASSED, value=1)
    held = chain.held_bytes(pod)
    story.check(held > limit, f"the card says: {held // MIB} MiB, more than its share")
    state = sample(samples, "kai_isolator_state", pod.name, BYPASSED)
    story.check(state == 1, "the monitor says: bypassed")
    story.line()
    story.show(chain.monitor_top())
    chain.delete(pod)
    story.check(chain.node.truth()[0]["used_bytes"] == 2 * (3 * GIB + CONTEXT_BYTES), "the others keep what is theirs")


def to_yaml(manifest: Mapping[str, Any]) -> str:
    """YAML in the order of the fields, with texts of several lines as such."""
    return yaml.dump(dict(manifest), Dumper=_Dumper, sort_keys=False, width=110)


class _Dumper(yaml.SafeDumper):
    """Keeps a script readable."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)
