"""`make demo`: the whole chain on this machine, told step by step. Exit status 1 if any step isn't as it should be."""

import argparse
import os
import signal
import sys
import traceback
from types import FrameType

from e2e.onebox.admission import DeniedError
from e2e.onebox.chain import Chain, ChainError
from e2e.onebox.environment import ContainerConfigError
from e2e.onebox.node import ContainerError, NoNamespacesError
from e2e.onebox.story import NotAsSaidError, Story
from e2e.onebox.tale import STEPS, tell
from e2e.onebox.volumes import FailedMountError

FAILURES = (
    NotAsSaidError,
    ChainError,
    ContainerConfigError,
    ContainerError,
    DeniedError,
    FailedMountError,
    NoNamespacesError,
    OSError,
)


def run(keep: bool, coloured: bool, done: int | None = None) -> int:
    """Tell the story and return the exit status. With keep, say it through `done` and stay until a signal."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    story = Story(STEPS, coloured)
    try:
        with Chain() as chain:
            tell(chain, story)
            story.line()
            story.check(True, "the promise is kept")
            if keep and done is not None:
                stay(chain, story, done)
    except FAILURES as error:
        story.line(f"\n{type(error).__name__}: {error}")
        return 1
    except KeyboardInterrupt:
        story.line("\nended by Ctrl-C; nothing is left behind")
        return 130
    return 0


def stay(chain: Chain, story: Story, done: int) -> None:
    """Leave all of it up: let the terminal go, and wait for the signal that ends it."""
    story.line("\nPods and monitor stay up. Look at them:")
    story.show(
        f"curl {chain.monitor_url}\n"
        f"SIMGPU_STATE={chain.node.card_state} build/simgpu/simgpu truth\n"
        f"nsenter --target {chain.pods[0]['main'].pid} --mount --pid --root --wd=/ vgpu-probe info\n"
        f"end it:  kill {os.getpid()}"
    )
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.write(done, b"0")
    os.close(done)
    while True:
        signal.pause()


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def run_detached(coloured: bool) -> int:
    """Run with keep in a session of its own; return when the story is told, whatever stays up."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.setsid()
        status = 1
        try:
            status = run(keep=True, coloured=coloured, done=write)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    os.close(write)
    try:
        told = os.read(read, 1)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        told = b""
    return 0 if told == b"0" else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.onebox.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave pods and monitor up, and say how to end them")
    keep = parser.parse_args().keep
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return run_detached(coloured) if keep else run(keep=False, coloured=coloured)


if __name__ == "__main__":
    sys.exit(main())
