"""`python -m e2e.cluster build`: the programs; `python -m e2e.cluster shell [--node]`: a cluster and a shell in it."""

import argparse
import os
import subprocess
import sys

from e2e.cluster import programs
from e2e.cluster.cluster import Cluster
from e2e.cluster.settings import Settings


def main() -> int:
    """Exit status of the shell, or 1 with a sentence where something is missing."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    parser.add_argument("what", choices=["build", "shell"])
    parser.add_argument("--node", action="store_true", help="with controllers, scheduler, containerd and kubelet")
    given = parser.parse_args()
    settings = Settings()
    try:
        programs.provide(settings)
    except programs.MissingError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if given.what == "build":
        sys.stdout.write(f"all there: {settings.programs}\n")
        return 0
    with Cluster(settings, given.node) as cluster:
        environment = os.environ | {
            "KUBECONFIG": str(cluster.kubeconfig),
            "PATH": f"{settings.programs}:{os.environ['PATH']}",
        }
        shell = os.environ.get("SHELL", "/bin/sh")
        return subprocess.run(cluster.namespaces.command([shell]), env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
