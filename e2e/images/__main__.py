"""`python -m e2e.images`: the project's images, and those that the cluster's tests use, as one archive."""

import argparse
import sys

from e2e.cluster import programs
from e2e.cluster.settings import Settings
from e2e.images.catalog import ROOT, build_all


def main() -> int:
    """Exit status 0, or 1 with a sentence."""
    argparse.ArgumentParser(prog="python -m e2e.images", description=__doc__).parse_args()
    try:
        programs.install_packages()
        archive = build_all(Settings())
    except (programs.MissingError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{archive.relative_to(ROOT)}: {archive.stat().st_size >> 20} MiB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
