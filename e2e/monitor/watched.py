"""A chain on this machine with a monitor that looks often, and pods in good and bad states on its card."""

import subprocess
import sys
from typing import Any

from e2e.onebox.chain import Chain, free_port, is_free
from e2e.onebox.node import BUILD
from e2e.onebox.pod import Pod

# A copy of the dynamic linker that looks for another preload file: what a static program is, without being one.
BYPASS = (
    "vgpu-probe hold 1g & sed s,/etc/ld.so.preload,/etc/ld.so.nothing, /lib64/ld-linux-x86-64.so.2 > /tmp/ld.so;"
    " chmod +x /tmp/ld.so; exec /tmp/ld.so /usr/local/bin/vgpu-probe hold 2g"
)


# The probe launches a kernel every 10 ms: two pods that do so use about half of the card.
KERNEL_US = "2500"


class WatchedChain(Chain):
    """A chain whose monitor has a short grace time, and whose card is busy for a while with each kernel."""

    def __enter__(self) -> "WatchedChain":
        super().__enter__()
        state = self.node.card_state
        program = str(BUILD / "simgpu" / "simgpu")
        subprocess.run([program, "create", "--state", state, "--card", "T4", "--kernel-us", KERNEL_US], check=True)
        state.chmod(0o666)
        return self

    def start_watching(self) -> str:
        """Start the monitor; its address."""
        self.prepare_node()
        self.start_webhook()
        self.write_pods_file()
        port = free_port()
        log = self.node.directory / "monitor.log"
        flags = ["--kubelet-root", str(self.node.kubelet_root), "--pods-file", str(self.pods_file)]
        command = [sys.executable, "-m", "monitor", "--listen", f"127.0.0.1:{port}", *flags]
        with log.open("wb") as out:
            process = self.node.spawn([*command, "--interval", "1", "--grace", "1"], self.node.driver_env(), out)
        while is_free(port):
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
        return f"127.0.0.1:{port}"

    def run_script(self, name: str, script: str, memory_mib: int = 4096) -> Pod:
        """Run a pod with a share."""
        manifest: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "team-a", "annotations": {"gpu-memory": str(memory_mib)}},
            "spec": {
                "schedulerName": "kai-scheduler",
                "containers": [{"name": "main", "image": "probe", "command": ["sh", "-c", script]}],
            },
        }
        return self.run(manifest)
