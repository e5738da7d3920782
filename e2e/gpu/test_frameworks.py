"""The share holds for the frameworks that tenants use, and they run as they do without the library.

They are looked for in the interpreter that GPU_PYTHON names, by default the one that runs the tests.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from e2e.gpu.card import MIB, Quota, held

PYTHON = os.environ.get("GPU_PYTHON", sys.executable)
LIMIT_MIB = 8000
FILL = """
import torch
held = []
total = torch.cuda.get_device_properties(0).total_memory
try:
    while True:
        held.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError:
    print(f"told {total >> 20} MiB, refused after {len(held)} x 100 MiB", flush=True)
"""
TRAIN = """
import torch
model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 2).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(8, 128, 256, device="cuda")
for _ in range(30):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
print(f"trained, loss {loss.item():.4f}", flush=True)
"""
GRAPH = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
data = torch.randn(32, 512, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    model(data)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    answer = model(data)
graph.replay()
torch.cuda.synchronize()
assert torch.allclose(answer, model(data), atol=1e-3)
print("captured and replayed", flush=True)
"""
CUPY = """
import cupy
try:
    held = cupy.ones((1000, 1000)) @ cupy.ones((1000, 1000))
    cupy.empty(12 << 30, dtype=cupy.uint8)
except cupy.cuda.memory.OutOfMemoryError:
    print(f"told {cupy.cuda.runtime.memGetInfo()[1] >> 20} MiB, refused 12 GiB", flush=True)
"""
JAX = """
import jax
import jax.numpy as jnp
held = jnp.ones((2000, 2000)) @ jnp.ones((2000, 2000))
held.block_until_ready()
print(f"takes {jax.devices()[0].memory_stats()['bytes_limit'] >> 20} MiB as its own pool", flush=True)
"""
# Afterwards a call now and then, as a program that lives on makes them.
LIVES_ON = """
import ctypes, sys, threading
driver = ctypes.CDLL("libcuda.so.1")
free, total = ctypes.c_size_t(), ctypes.c_size_t()
while not done.wait(0.2):
    driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
"""
STAYS = """
import sys, threading
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
"""


def allocator(name: str) -> str:
    return f"import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = '{name}'\n"


PROGRAMS = {
    "torch takes all": ("torch", FILL),
    "torch takes all with expandable segments": ("torch", allocator("expandable_segments:True") + FILL),
    "torch takes all in stream order": ("torch", allocator("backend:cudaMallocAsync") + FILL),
    "torch trains": ("torch", TRAIN),
    "torch captures a graph": ("torch", GRAPH),
    "torch captures a graph in stream order": ("torch", allocator("backend:cudaMallocAsync") + GRAPH),
    "cupy": ("cupy", CUPY),
    "jax": ("jax", JAX),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_framework_keeps_to_its_share(quota: Callable[[int], Quota], name: str) -> None:
    module, text = PROGRAMS[name]
    found = subprocess.run([PYTHON, "-c", f"import {module}"], check=False, capture_output=True)
    if found.returncode:
        pytest.skip(f"{module} isn't installed in {PYTHON} (GPU_PYTHON names another interpreter)")
    one = quota(LIMIT_MIB)
    command = [PYTHON, "-c", STAYS + text + LIVES_ON]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=one.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as program:
        assert program.stdout is not None
        said = program.stdout.readline().strip()
        end = time.monotonic() + 5
        while one.region.exists() and one.charged() != held(program.pid) and time.monotonic() < end:
            time.sleep(0.1)
        charged, real = one.charged() if one.region.exists() else 0, held(program.pid)
        _, errors = program.communicate("")
    assert said, errors[-2000:]
    assert program.returncode == 0, errors[-2000:]
    print(f"{name}: {said}; charged {charged / MIB:g}, held {real / MIB:g} MiB")
    assert charged == real <= LIMIT_MIB * MIB
    if "refused" in said and "told" in said:
        assert f"told {LIMIT_MIB} MiB" in said
