"""admission.k8s.io/v1 over HTTPS: right answers, right codes for what is no review."""

import base64
import json
import socket
import ssl
import warnings

import jsonpatch
import pytest

from tests.webhook.server import Webhook, body, pod, read, review

UID = "5f1c5c3e-0000-4000-8000-000000000001"


def test_share_is_answered_with_a_patch(webhook: Webhook) -> None:
    """Exactly the fields of AdmissionResponse, nothing of the request repeated."""
    status, answer = webhook.post(body(pod(gpu_memory="4096")))
    assert (status, answer["apiVersion"], answer["kind"]) == (200, "admission.k8s.io/v1", "AdmissionReview")
    assert set(answer) == {"apiVersion", "kind", "response"}
    response = answer["response"]
    assert set(response) == {"uid", "allowed", "auditAnnotations", "patchType", "patch"}
    assert (response["uid"], response["allowed"], response["patchType"]) == (UID, True, "JSONPatch")
    patched = jsonpatch.apply_patch(pod(gpu_memory="4096"), base64.b64decode(response["patch"]).decode())
    assert len(patched["spec"]["volumes"]) == 4


def test_pod_without_share_is_allowed_without_a_patch(webhook: Webhook) -> None:
    status, answer = webhook.post(body(pod()))
    assert status == 200
    assert answer["response"] == {"uid": UID, "allowed": True, "auditAnnotations": {"reason": "NoShare"}}


def test_denial_has_code_reason_and_sentence(webhook: Webhook) -> None:
    status, answer = webhook.post(body(pod(gpu_memory="2000mb")))
    assert status == 200
    denied = answer["response"]["status"]
    assert answer["response"]["allowed"] is False
    assert (denied["code"], denied["reason"]) == (400, "GpuMemoryInvalid")
    assert '"2000mb"' in denied["message"]


def test_warnings_keep_the_api_servers_limit(webhook: Webhook) -> None:
    """At most 256 characters each, whatever the pod contains."""
    wide = pod(gpu_memory="4096")
    wide["spec"]["containers"][0]["name"] = "n" * 5000
    wide["spec"]["containers"][0]["env"] = [
        {"name": "CUDA_DEVICE_MEMORY_LIMIT_" + "1" * 500, "value": "x" * 5000} for _ in range(100)
    ]
    _, answer = webhook.post(body(wide))
    warnings = answer["response"]["warnings"]
    assert warnings
    assert all(len(warning) <= 256 for warning in warnings)
    assert sum(map(len, warnings)) <= 4096
    assert all(warning.endswith("(LimitUnreadable)") for warning in warnings)


@pytest.mark.parametrize(
    "key",
    [
        b'"a\\\\": 1',
        b'"a": "\\":"',
        b'"a" : 1',
        b'"a"\n: 1',
        b'"a": "b : c"',
        b'"a": "{\\"b\\":1,\\"b\\":2}"',
        b'"": {"": 1}',
        b'"a": ":0"',
        b'"a":":0"',
    ],
)
def test_unusual_but_right_json_is_read(webhook: Webhook, key: bytes) -> None:
    """White space, escapes and JSON within JSON are no reason to refuse a review."""
    content = body(pod(gpu_memory="4096")).replace(b'"dryRun": false', key + b', "dryRun": false')
    assert webhook.post(content)[0] == 200


@pytest.mark.parametrize(
    ("operation", "resource", "sub"), [("UPDATE", "pods", ""), ("CREATE", "pods", "binding"), ("CREATE", "jobs", "")]
)
def test_other_requests_pass_unchanged(webhook: Webhook, operation: str, resource: str, sub: str) -> None:
    """A configuration that sends too much harms nobody."""
    named = {"group": "", "version": "v1", "resource": resource}
    _, answer = webhook.post(body(pod(gpu_memory="4096"), operation=operation, resource=named, subResource=sub))
    assert answer["response"]["allowed"] is True
    assert answer["response"]["auditAnnotations"] == {"reason": "NotAPodCreation"}


def test_dry_run_is_answered_as_any_other(webhook: Webhook) -> None:
    """There are no side effects that it could have."""
    answers = [webhook.post(body(pod(gpu_memory="4096"), dryRun=dry_run)) for dry_run in (True, False)]
    assert answers[0] == answers[1]


def _nested(levels: int) -> bytes:
    return (
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":'
        + b'{"a":' * levels
        + b"1"
        + b"}" * (levels + 1)
    )


def _with(**fields: object) -> bytes:
    return body(pod(gpu_memory="4096"), **fields)


BAD_BODIES = {
    "empty": b"",
    "text": b"hello",
    "truncated": _with()[:-10],
    "list": b"[]",
    "null": b"null",
    "number": b"1",
    "latin-1": _with().replace(b"alice", b"al\xefce"),
    "utf-16": _with().decode().encode("utf-16"),
    "nan": _with().replace(b'"dryRun": false', b'"dryRun": NaN'),
    "huge integer": _with().replace(b'"dryRun": false', b'"dryRun": ' + b"1" * 100_000),
    "duplicate key": _with().replace(b'"dryRun": false', b'"dryRun": false, "dryRun": true'),
    "duplicate annotation": _with().replace(b'"gpu-memory": "4096"', b'"gpu-memory": "1", "gpu-memory": "4096"'),
    "duplicate key among spaced ones": _with().replace(b'"dryRun": false', b'"dryRun" : false, "dryRun": false'),
    "duplicate key among escapes": _with().replace(b'"dryRun": false', b'"a\\\\": 1, "dryRun": 1, "dryRun": false'),
    "duplicate key beside quotes": _with().replace(b'"dryRun": false', b'"a": "\\":", "dryRun": 1, "dryRun": false'),
    "same key twice, once escaped": _with().replace(b'"dryRun": false', b'"dryRun": 1, "dry\\u0052un": false'),
    "deep": _nested(50_000),
    "another version": _with().replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"),
    "another kind": _with().replace(b'"AdmissionReview"', b'"Pod"'),
    "no request": json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}).encode(),
    "response instead": json.dumps(
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": {}}
    ).encode(),
    "no uid": _with(uid=""),
    "uid is a number": _with(uid=7),
    "endless uid": _with(uid="u" * 10_000),
    "no resource": _with(resource=None),
    "object is text": json.dumps(review("pod")).encode(),
    "pod is empty": json.dumps(review({})).encode(),
    "spec is a list": json.dumps(review({**pod(), "spec": []})).encode(),
    "containers is an object": json.dumps(review({**pod(), "spec": {"containers": {}}})).encode(),
    "annotation is a number": _with().replace(b'"4096"', b"4096"),
    "dry run is text": _with(dryRun="yes"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_what_is_no_review_is_a_bad_request(webhook: Webhook, name: str) -> None:
    """400 and a short reason; never a guess, never a trace of the program."""
    status, answer = webhook.post(BAD_BODIES[name])
    assert status == 400
    assert set(answer) == {"error"}
    assert "Traceback" not in answer["error"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("GET", "/mutate", {}, 405),
        ("PUT", "/mutate", {}, 405),
        ("DELETE", "/healthz", {}, 405),
        ("GET", "/", {}, 404),
        ("POST", "/mutate/", {"Content-Type": "application/json"}, 404),
        ("GET", "/../etc/passwd", {}, 404),
        ("POST", "/mutate", {"Content-Type": "application/yaml"}, 415),
        ("POST", "/mutate", {"Content-Type": ""}, 415),
        ("POST", "/mutate", {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}, 411),
        ("POST", "/mutate", {"Content-Type": "application/json", "Content-Length": "999999999"}, 413),
        ("GET", "/healthz", {"X-Long": "x" * 5000}, 431),
        ("GET", "/healthz", {f"X-{number}": "x" * 300 for number in range(60)}, 431),
    ],
)
def test_wrong_request_gets_the_right_code(
    webhook: Webhook, method: str, path: str, headers: dict[str, str], code: int
) -> None:
    connection = webhook.connect()
    connection.putrequest(method, path)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == code
    connection.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    ],
)
def test_garbage_over_tls_is_refused(webhook: Webhook, garbage: bytes) -> None:
    with webhook.raw() as sock:
        sock.sendall(garbage)
        answer = sock.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b'{"error":"not a valid HTTP request"}\n')


def test_plain_http_on_the_tls_port_is_closed(webhook: Webhook) -> None:
    with socket.create_connection(("127.0.0.1", webhook.port), timeout=20) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            answer = sock.recv(4096)
        except ConnectionResetError:
            answer = b""
    assert b"HTTP/1.1 200" not in answer


def test_reviews_are_not_taken_over_the_plain_port(webhook: Webhook) -> None:
    connection = webhook.plain()
    connection.request("POST", "/mutate", body(pod()), {"Content-Type": "application/json"})
    assert read(connection.getresponse())[0] == 403
    connection.close()


@pytest.mark.parametrize(("version", "accepted"), [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)])
def test_tls_1_2_is_the_oldest(webhook: Webhook, version: str, accepted: bool) -> None:
    context = webhook.context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # asking for the old version is the test
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = getattr(ssl.TLSVersion, version)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", webhook.port), timeout=20) as sock:
        try:
            context.wrap_socket(sock, server_hostname="localhost").close()
        except (ssl.SSLError, ConnectionError):
            assert not accepted
        else:
            assert accepted


def test_connection_serves_many_reviews(webhook: Webhook) -> None:
    """Kept alive, also when requests come faster than answers are read."""
    request = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    one = request % (len(body(pod(gpu_memory="4096"))), body(pod(gpu_memory="4096")))
    with webhook.raw() as sock:
        sock.sendall(one * 20)
        received = b""
        while received.count(b'"patchType":"JSONPatch"') < 20:
            part = sock.recv(65536)
            assert part, "closed before all were answered"
            received += part


def test_expect_100_continue_is_answered(webhook: Webhook) -> None:
    content = body(pod(gpu_memory="4096"))
    head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    with webhook.raw() as sock:
        sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(content))
        assert sock.recv(4096).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        sock.sendall(content)
        answer = b""
        while b'"uid"' not in answer:
            answer += sock.recv(65536)
        assert b"HTTP/1.1 200 OK" in answer


def test_log_line_says_who_what_and_why(webhook: Webhook) -> None:
    """The codes of log, answer and metric are the same, and no value of the environment is in the log."""
    secret = pod(gpu_memory="2000mb")
    secret["metadata"].update(name="audited", ownerReferences=[{"kind": "Job", "name": "nightly"}])
    secret["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": "hunter2-hunter2"}]
    line = 'kai_isolator_webhook_reviews_total{decision="denied",reason="GpuMemoryInvalid"}'
    before = webhook.metric(line)
    webhook.post(body(secret, uid="audited-uid"))
    record = next(record for record in webhook.records() if record.get("uid") == "audited-uid")
    assert {"namespace": "team", "name": "audited", "owner": "Job/nightly"}.items() <= record.items()
    assert (record["decision"], record["reason"]) == ("denied", "GpuMemoryInvalid")
    assert record["ms"] >= 0
    assert "hunter2" not in webhook.log.read_text()
    assert webhook.metric(line) == before + 1


def test_metrics_page_has_what_alerts_need(webhook: Webhook) -> None:
    webhook.post(body(pod(gpu_memory="4096")))
    page = webhook.get("/metrics")[1]
    for name in (
        "review_duration_seconds_bucket",
        "certificate_expiry_timestamp_seconds",
        "warnings_total",
        "connections",
    ):
        assert f"kai_isolator_webhook_{name}" in page
