"""`helm test` proves the share on the operator's own cluster, or says why it can't."""

from e2e.cluster.chain import Chain
from e2e.cluster.release import NAME
from e2e.cluster.settings import NODE_NAME


def _helm_test(chain: Chain) -> str:
    return chain.cluster.helm("test", NAME, f"--namespace={NAME}", "--logs", "--timeout=120s", check=False)


def test_helm_test_passes_and_reads_like_the_quick_start(chain: Chain) -> None:
    output = _helm_test(chain)
    assert "Phase:          Succeeded" in output, output
    for line in (
        f"limit={chain.limit_mib()}m",
        "/usr/local/vgpu/libvgpu.so",
        f"{chain.limit_mib()} MiB",
        "verdict  kept",
        "PASSED: the quota that is visible",
    ):
        assert line in output, output
    assert "the neighbour still holds what it took" in output
    lines = [line for line in output.splitlines() if line.startswith(("limit=", "granted", "verdict", "PASSED"))]
    print("helm test: " + " | ".join(lines))


def test_helm_test_says_why_it_skips_without_a_gpu(chain: Chain) -> None:
    assert chain.own
    status = f"/api/v1/nodes/{NODE_NAME}/status"
    chain.patch(status, {"status": {"capacity": {"nvidia.com/gpu": None}, "allocatable": {"nvidia.com/gpu": None}}})
    try:
        output = _helm_test(chain)
    finally:
        gpu = {"nvidia.com/gpu": "1"}
        chain.patch(status, {"status": {"capacity": gpu, "allocatable": gpu}})
    assert "SKIPPED: no node of this cluster offers nvidia.com/gpu" in output, output
    print("helm test: " + next(line for line in output.splitlines() if line.startswith("SKIPPED")))


def test_helm_test_says_why_it_skips_without_kai(chain: Chain) -> None:
    queues = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/queues.scheduling.run.ai"
    definition = chain.own.get(queues)
    chain.cluster.request("DELETE", queues)
    try:
        output = _helm_test(chain)
    finally:
        own = {"metadata": {"name": definition["metadata"]["name"]}, "spec": definition["spec"]}
        chain.create(queues.rpartition("/")[0], own)
    assert "SKIPPED: KAI Scheduler isn't installed" in output, output
    print("helm test: " + next(line for line in output.splitlines() if line.startswith("SKIPPED")))
