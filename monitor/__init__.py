"""Per-node exporter: what was promised, what is enforced and what is really used, for each container."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kai-resource-isolator")
except PackageNotFoundError:  # run from a folder that was never installed
    __version__ = "unknown"
