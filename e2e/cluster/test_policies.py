"""What nobody may do to a pod with a share once it runs, and where none may run at all; also with a real KAI."""

from e2e.cluster.chain import Chain, sleeper

MERGE = {"Content-Type": "application/merge-patch+json"}
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}


def test_share_of_a_running_pod_cannot_be_changed(chain: Chain) -> None:
    running = chain.start(sleeper("kept"))
    for change in ({"gpu-memory": "8192"}, {"gpu-memory": None}, {"gpu-fraction": "1.0"}):
        status, answer = chain.cluster.request(
            "PATCH", running.path, {"metadata": {"annotations": change}}, headers=MERGE
        )
        assert status == 403, answer
        assert "decides the share" in answer["message"]
    print(f"refused: {answer['message'].partition('denied request: ')[2]}")


def test_ephemeral_container_beside_a_running_share_is_refused(chain: Chain) -> None:
    running = chain.start(sleeper("debugged"))
    body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": chain.image}]}}
    status, answer = chain.cluster.request("PATCH", f"{running.path}/ephemeralcontainers", body, headers=STRATEGIC)
    assert status == 403, answer
    assert "an ephemeral container can't be limited" in answer["message"]
    print(f"refused: {answer['message'].partition('denied request: ')[2]}")


def test_namespace_under_pod_security_restricted_gets_our_sentence(chain: Chain) -> None:
    name = "kri-restricted"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    chain.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    try:
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        chain.cluster.wait("it has its account", lambda: chain.cluster.request("GET", account)[0] == 200, 20)
        status, answer = chain.cluster.request("POST", f"/api/v1/namespaces/{name}/pods?dryRun=All", sleeper("share"))
        assert status == 403, answer
        assert "run the pod in a namespace labelled pod-security.kubernetes.io/enforce=privileged" in answer["message"]
        print(f"refused: {answer['message']}")
    finally:
        chain.cluster.request("DELETE", f"/api/v1/namespaces/{name}")
