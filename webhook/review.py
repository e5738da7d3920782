"""AdmissionReview admission.k8s.io/v1: reading a request strictly, writing an answer that repeats nothing of it."""

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from webhook import reasons
from webhook.pod import MalformedObjectError, Object, mapping, text
from webhook.policy import Decision, Warned

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
# Limits of the API server: longer warnings are cut once all together pass 4096 bytes.
_WARNING_CHARACTERS = 256
_WARNINGS = 16
_UID_CHARACTERS = 256
# Of white space only blanks can stand in a string as they are.
_WHITE_SPACE = ("\t", "\n", "\r", " :")
encode = json.JSONEncoder(separators=(",", ":")).encode
# What a body costs is the number of its values, not its length: a pod that can be stored has far fewer.
_VALUES = 400_000


class BadRequestError(ValueError):
    """The body isn't a review: HTTP 400, with this text."""


class Status(TypedDict):
    """metav1.Status of a denial."""

    code: int
    message: str
    reason: str


class Response(TypedDict):
    """AdmissionResponse."""

    uid: str
    allowed: bool
    auditAnnotations: dict[str, str]
    status: NotRequired[Status]
    patchType: NotRequired[str]
    patch: NotRequired[str]
    warnings: NotRequired[list[str]]


class ReviewAnswer(TypedDict):
    """AdmissionReview as it goes back."""

    apiVersion: str
    kind: str
    response: Response


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of an AdmissionRequest that matter here."""

    uid: str
    operation: str
    resource: tuple[str, str, str]
    namespace: str
    dry_run: bool
    object: Object

    @property
    def creates_pod(self) -> bool:
        """Whether a pod is being created."""
        return self.operation == "CREATE" and self.resource == ("", "pods", "")

    @property
    def pod_name(self) -> str:
        """Name for the log; a pod with generateName has no name yet."""
        metadata = _loose(self.object.get("metadata"))
        name, prefix = metadata.get("name"), metadata.get("generateName")
        return str(name) if name else f"{prefix}*" if prefix else ""

    @property
    def owner(self) -> str:
        """Kind and name of the first owner, for the log."""
        owners = _loose(self.object.get("metadata")).get("ownerReferences")
        first = _loose(owners[0]) if isinstance(owners, list) and owners else {}
        return f"{first.get('kind')}/{first.get('name')}" if first else ""


def _loose(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def _unique(pairs: list[tuple[str, Any]]) -> Object:
    """Build an object. Two values for one key would let two readers see two different pods."""
    if len(made := dict(pairs)) != len(pairs):
        raise BadRequestError("the body has an object with the same key twice")
    return made


def _no_constant(name: str) -> None:
    raise BadRequestError(f"the body has {name}, which JSON doesn't know")


class _KeyCounter:
    """Counts the keys of the objects that a parser builds."""

    def __init__(self) -> None:
        self.keys = 0

    def see(self, made: Object) -> Object:
        self.keys += len(made)
        return made


def load(body: bytes) -> Any:
    """Return the JSON of a body. Raises ValueError, BadRequestError for an object with the same key twice.

    Building each object from its pairs costs more than deciding. But where no colon follows white space and no
    backslash before a quote is escaped itself, each key of the text shows as a quote and a colon that no backslash
    escapes: no more of them than the parser found keys means that no key was lost. More of them may also come from
    texts that begin with a colon (DISPLAY=:0), so then each object is built from its pairs after all.
    """
    content = body.decode("utf-8")
    if not any(mark in content for mark in _WHITE_SPACE) and not ("\\" in content and '\\\\":' in content):
        counter = _KeyCounter()
        loaded = json.loads(content, object_hook=counter.see, parse_constant=_no_constant)
        escaped = content.count('\\":') if "\\" in content else 0
        if counter.keys == content.count('":') - escaped:
            return loaded
    return json.loads(content, object_pairs_hook=_unique, parse_constant=_no_constant)


def parse(body: bytes) -> Request:
    """Return the request in a body. Raises BadRequestError."""
    if len(body) > _VALUES and sum(body.count(mark) for mark in (b",", b"[", b"{")) > _VALUES:
        raise BadRequestError("the body has too many values")
    try:
        review = load(body)
    except BadRequestError:
        raise
    except RecursionError:
        raise BadRequestError("the body is nested too deeply") from None
    except ValueError:
        raise BadRequestError("the body is not JSON in UTF-8") from None
    if not isinstance(review, dict):
        raise BadRequestError("the body is not an object")
    if review.get("apiVersion") != API_VERSION or review.get("kind") != KIND:
        raise BadRequestError(f"the body is not an {KIND} of {API_VERSION}")
    try:
        return _request(mapping(review, "request", "review"))
    except MalformedObjectError as error:
        raise BadRequestError(str(error)) from None


def _request(request: Object) -> Request:
    uid = text(request, "uid", "request")
    if not 0 < len(uid) <= _UID_CHARACTERS:
        raise BadRequestError("request.uid is missing or too long")
    resource = mapping(request, "resource", "request")
    names = (
        text(resource, "group", "request.resource"),
        text(resource, "resource", "request.resource"),
        text(request, "subResource", "request"),
    )
    if not names[1]:
        raise BadRequestError("request.resource is missing")
    dry_run = request.get("dryRun")
    if dry_run not in (None, True, False):
        raise BadRequestError("request.dryRun is not a boolean")
    return Request(
        uid=uid,
        operation=text(request, "operation", "request"),
        resource=names,
        namespace=text(request, "namespace", "request"),
        dry_run=bool(dry_run),
        object=mapping(request, "object", "request"),
    )


def render(uid: str, decision: Decision) -> str:
    """Return the JSON text of the review that answers the request with this uid."""
    return encode(answer(uid, decision))


def answer(uid: str, decision: Decision) -> ReviewAnswer:
    """Return the review that answers the request with this uid."""
    code = decision.reason.code
    response: Response = {"uid": uid, "allowed": decision.allowed, "auditAnnotations": {"reason": code}}
    if decision.reason.outcome is reasons.Outcome.DENIED:
        message = f"{decision.message} ({code})"
        response["status"] = {"code": decision.reason.status, "message": message, "reason": code}
    if decision.operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = b64encode(encode(decision.operations).encode()).decode()
    if decision.warnings:
        response["warnings"] = [_warning(warned) for warned in decision.warnings[:_WARNINGS]]
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def _warning(warned: Warned) -> str:
    suffix = f" ({warned.reason.code})"
    return warned.message[: _WARNING_CHARACTERS - len(suffix)] + suffix
