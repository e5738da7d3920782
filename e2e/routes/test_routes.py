"""The routes once more, inside an older glibc and on aarch64: a list of symbols alone proves neither."""

from tests.symbols.test_routes import *  # noqa: F403 - the same claims; `routes` is this folder's
