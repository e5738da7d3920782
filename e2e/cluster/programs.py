"""Kubernetes and helm from their Go modules, Debian's packages for the rest; each only where it's missing."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.settings import HELM_VERSION, KUBERNETES_VERSION, PACKAGES, Settings

LINKS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")


class MissingError(Exception):
    """Something that the cluster needs isn't here and can't be had; the text says what to do."""


def provide(settings: Settings) -> None:
    """Make sure that everything is there: seconds when it is, about 10 minutes on 2 cores from nothing."""
    with settings.alone():
        install_packages()
        build_kubernetes(settings)
        build_helm(settings)


def install_packages() -> None:
    """Install the Debian packages that are missing (root only); no daemon of theirs is started."""
    missing = [package for package, proof in PACKAGES.items() if not Path(proof).exists()]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingError(f"the cluster needs these Debian packages, install them as root: {' '.join(missing)}")
    with _no_daemons():
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
            subprocess.run(["apt-get", "-qq", *command], check=True, env=environment, stdout=subprocess.DEVNULL)


@contextmanager
def _no_daemons() -> Iterator[None]:
    """Debian's own switch: while this program says 101, no package may start its service."""
    policy = Path("/usr/sbin/policy-rc.d")
    ours = "#!/bin/sh\n# kai-resource-isolator: while make e2e installs packages\nexit 101\n"
    if policy.exists() and policy.read_text() != ours:
        yield  # somebody else's policy stays
        return
    policy.write_text(ours)  # or a run was killed here, and left it
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()


def build_kubernetes(settings: Settings) -> None:
    """Compile all Kubernetes programs as one binary with links, by the versions that its go.mod means."""
    if all((settings.programs / name).exists() for name in LINKS):
        return
    folder = settings.cache / "build"
    folder.mkdir(parents=True, exist_ok=True)
    settings.programs.mkdir(parents=True, exist_ok=True)
    module = f"k8s.io/kubernetes@v{KUBERNETES_VERSION}"
    _go(settings, ["mod", "init", "example.invalid/kubernetes"], folder, check=not (folder / "go.mod").exists())
    downloaded = json.loads(_go(settings, ["mod", "download", "-json", module], folder))
    (folder / "go.mod").write_text(_go_mod(Path(downloaded["GoMod"]).read_text()))
    shutil.copyfile(Path(__file__).with_name("kubernetes.go.txt"), folder / "main.go")
    _go(settings, ["mod", "tidy"], folder)
    version = "k8s.io/component-base/version"
    minor = KUBERNETES_VERSION.split(".")[1]
    stamp = {
        "gitVersion": f"v{KUBERNETES_VERSION}",
        "gitMajor": "1",
        "gitMinor": minor,
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    flags = "-s -w " + " ".join(f"-X {version}.{key}={value}" for key, value in stamp.items())
    binary = settings.programs / "kubernetes"
    _go(settings, ["build", "-trimpath", "-ldflags", flags, "-o", str(binary), "."], folder)
    for name in LINKS:
        link = settings.programs / name
        link.unlink(missing_ok=True)
        link.symlink_to(binary.name)


def build_helm(settings: Settings) -> None:
    """Compile helm; the version that `helm template` and `helm lint` take the cluster for is set at build time."""
    if not (settings.programs / "helm").exists():
        major, minor, _ = KUBERNETES_VERSION.split(".")
        variables = {"k8sVersionMajor": major, "k8sVersionMinor": minor}
        packages = ("chartutil", "lint/rules")
        flags = [f"-X helm.sh/helm/v3/pkg/{p}.{name}={value}" for p in packages for name, value in variables.items()]
        command = ["install", "-ldflags", "-s -w " + " ".join(flags), f"helm.sh/helm/v3/cmd/helm@v{HELM_VERSION}"]
        with tempfile.TemporaryDirectory() as folder:
            _go(settings, command, Path(folder))


def _go_mod(kubernetes_go_mod: str) -> str:
    """A go.mod that depends on Kubernetes as a module; its staging modules have the same version, major number 0."""
    staging = set(re.findall(r"^\s*(k8s\.io/[a-z0-9-]+) => \./staging/", kubernetes_go_mod, re.MULTILINE))
    staging |= set(re.findall(r"^\s*(k8s\.io/[a-z0-9-]+) v0\.0\.0(?:\s|$)", kubernetes_go_mod, re.MULTILINE))
    language = re.search(r"^go (\S+)$", kubernetes_go_mod, re.MULTILINE)
    lines = ["module example.invalid/kubernetes", f"go {language.group(1) if language else '1.24'}"]
    lines.append(f"require k8s.io/kubernetes v{KUBERNETES_VERSION}")
    version = "0." + KUBERNETES_VERSION.partition(".")[2]
    lines += [f"replace {module} => {module} v{version}" for module in sorted(staging)]
    return "\n\n".join(lines) + "\n"


def _go(settings: Settings, arguments: list[str], folder: Path, check: bool = True) -> str:
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not Path(go).exists():
        raise MissingError("the Kubernetes programs are compiled once and need Go >= 1.24 on the PATH: install it")
    environment = os.environ | {
        "GOPATH": str(settings.cache / "gopath"),
        "GOCACHE": str(settings.cache / "gocache"),
        "GOBIN": str(settings.programs),
        "GOFLAGS": "-mod=mod -buildvcs=false",
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
    }
    done = subprocess.run([go, *arguments], cwd=folder, env=environment, check=False, capture_output=True, text=True)
    if check and done.returncode:
        raise MissingError(f"go {' '.join(arguments[:2])} failed:\n{done.stderr[-3000:]}")
    return done.stdout
