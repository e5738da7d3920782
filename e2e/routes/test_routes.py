"""The routes once more, inside an older and a newer glibc and on aarch64: a list of symbols alone proves nothing."""

from tests.symbols.test_routes import *  # noqa: F403 - the same claims; `routes` is this folder's
