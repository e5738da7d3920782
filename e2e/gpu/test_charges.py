"""What is charged is what the card holds, by NVML's figure for the process, after every step."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from e2e.gpu.card import MIB, Quota, held
from tests.conftest import BUILD
from tests.libvgpu.conftest import OOM, Worker

PTX = ".version 7.0\n.target sm_50\n.address_size 64\n"
LAST_MIB = 40000  # a quota that nothing here reaches


def deep(local_bytes: int) -> str:
    """A kernel with so much local memory for each thread, used at places that no compiler knows."""
    return f"""{PTX}.visible .global .align 4 .u32 seats[3];
.visible .entry work()
{{
    .local .align 4 .b8 scratch[{local_bytes}];
    .reg .u64 %a<6>;
    .reg .u32 %r<4>;
    mov.u64 %a1, seats;
    mov.u64 %a2, scratch;
    ld.global.u32 %r1, [%a1];
    rem.u32 %r1, %r1, {local_bytes // 4};
    mul.wide.u32 %a3, %r1, 4;
    add.u64 %a4, %a2, %a3;
    st.local.u32 [%a4], %r1;
    ld.global.u32 %r2, [%a1+4];
    rem.u32 %r2, %r2, {local_bytes // 4};
    mul.wide.u32 %a3, %r2, 4;
    add.u64 %a4, %a2, %a3;
    ld.local.u32 %r3, [%a4];
    st.global.u32 [%a1+8], %r3;
    ret;
}}
"""


Step = tuple[str, object]


def contexts(worker: Worker) -> Iterator[Step]:
    made = [worker.out("cuCtxCreate_v2", 0, 0)[1] for _ in range(2)]
    yield "two more contexts", made
    worker.alloc(10 * MIB)
    yield "10 MiB in the last", None
    for context in reversed(made):
        yield "one destroyed", worker.call("cuCtxDestroy_v2", context)
    yield "reset", worker.call("cuDevicePrimaryCtxReset_v2", 0)


def linear(worker: Worker) -> Iterator[Step]:
    sizes = [1, 4096, MIB // 2, MIB - 1, MIB, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 33 * MIB, 100 * MIB + 1, 1000 * MIB]
    made = []
    for size in sizes:
        made.append(worker.alloc(size)[1])
        yield f"{size} bytes", None
    made += [worker.alloc(1000)[1] for _ in range(3000)] + [worker.alloc(MIB)[1] for _ in range(21)]
    yield "small ones", None
    for address in made[::2]:
        worker.call("cuMemFree_v2", address)
    yield "half freed", None
    for address in made[1::2]:
        worker.call("cuMemFree_v2", address)
    yield "all freed", None
    for width, height in ((1000, 1000), (1, 100000), (70000, 300), (100, 64)):
        yield f"{height} rows of {width}", worker.pitch(width, height)


def pools(worker: Worker) -> Iterator[Step]:
    pool = worker.pool_create()[1]
    worker.pool_set(pool, 4, 2**64 - 1)
    for where in (None, pool):
        made = []
        for size in (1, MIB, 33 * MIB, 100 * MIB, 1000 * MIB + 1):
            more = () if where is None else (where,)
            name = "cuMemAllocAsync" if where is None else "cuMemAllocFromPoolAsync"
            made.append(worker.out(name, size, *more, 0)[1])
            yield f"{size} bytes in stream order", None
        for address in made:
            worker.call("cuMemFreeAsync", address, 0)
        yield "freed", worker.call("cuCtxSynchronize")
    yield "trimmed", worker.call("cuMemPoolTrimTo", pool, 40 * MIB)
    yield "destroyed", worker.call("cuMemPoolDestroy", pool)


def vmm(worker: Worker) -> Iterator[Step]:
    for size in (2 * MIB, 64 * MIB):
        handle = worker.vmm_create(size)[1]
        yield f"{size} bytes", None
        address = worker.vmm_reserve(size)[1]
        worker.call("cuMemMap", address, size, 0, handle, 0)
        yield "released, still mapped", worker.call("cuMemRelease", handle)
        yield "unmapped", worker.call("cuMemUnmap", address, size)
    yield "on the host", worker.vmm_create(2 * MIB, 0, 2)


ARRAYS = [
    *((64,), (64, 0, 0, 1), (64, 64), (150, 150), (256, 256), (258, 258), (1000, 1000), (1030, 1030, 0, 1)),
    *((2048, 1025), (16384, 65, 0, 1), (131072,), (100, 100, 100, 1), (100, 100, 100), (1024, 1024, 3, 1)),
    *((300, 300, 30, 1), (512, 512, 6, 4, 2), (300, 300, 7, 4, 1), (512, 512, 6, 1, 4), (1000, 0, 9, 4, 1)),
]


def arrays(worker: Worker) -> Iterator[Step]:
    made = []
    for shape in ARRAYS:
        made.append(worker.array(*shape)[1])
        yield f"array {shape}", None
    for array in made[::2]:
        worker.call("cuArrayDestroy", array)
    yield "half destroyed", None
    for array in made[1::2]:
        worker.call("cuArrayDestroy", array)
    yield "all destroyed", None
    for shape in ((1024, 1024, 11), (777, 555, 10), (64, 64, 7)):
        mipmapped = worker.mipmapped(*shape)[1]
        yield f"mipmapped {shape}", None
        yield "destroyed", worker.call("cuMipmappedArrayDestroy", mipmapped)


def modules(worker: Worker) -> Iterator[Step]:
    loaded = worker.module_load(f"{PTX}.visible .global .align 4 .b8 table[{64 * MIB}];\n")[1]
    yield "64 MiB of globals", None
    yield "unloaded", worker.call("cuModuleUnload", loaded)
    made = [worker.module_load(f"{PTX}.visible .global .align 4 .b8 t{i}[100000];\n")[1] for i in range(30)]
    yield "30 small modules", None
    for module in made:
        worker.call("cuModuleUnload", module)
    yield "unloaded", None
    text = f"{PTX}.visible .global .align 4 .b8 t[{32 * MIB}];\n.visible .entry k() {{ ret; }}\n"
    library = worker.library_load(text)
    kernel = worker.named("cuLibraryGetKernel", library[1], "k")[1]
    yield "a library's kernel", worker.launch(kernel)
    yield "unloaded", worker.call("cuLibraryUnload", library[1])


def graphs(worker: Worker) -> Iterator[Step]:
    graph = worker.out("cuGraphCreate", 0)[1]
    _, node, address = worker.graph_alloc(graph, 64 * MIB)
    worker.graph_free(graph, address, node)
    executable = worker.out("cuGraphInstantiateWithFlags", graph, 0)[1]
    yield "launched", worker.call("cuGraphLaunch", executable, 0)
    yield "over", worker.call("cuCtxSynchronize")
    yield "trimmed", worker.call("cuDeviceGraphMemTrim", 0)
    result, graph = worker.captured(100 * MIB, True)
    assert result == 0, "our own questions must not end a capture"
    executable = worker.out("cuGraphInstantiateWithFlags", graph, 0)[1]
    yield "captured, launched", worker.call("cuGraphLaunch", executable, 0)
    yield "over", worker.call("cuCtxSynchronize")


def streams(worker: Worker) -> Iterator[Step]:
    made = [worker.out("cuStreamCreate", 1)[1] for _ in range(100)]
    yield "100 streams", None
    for stream in made:
        worker.call("cuStreamDestroy_v2", stream)
    yield "destroyed", None


def local_memory(worker: Worker) -> Iterator[Step]:
    for size in (512, 2048, 16384):
        function = worker.named("cuModuleGetFunction", worker.module_load(deep(size))[1], "work")[1]
        yield f"a kernel of {size} bytes a thread", worker.launch(function)
    yield "8 KiB stacks", worker.call("cuCtxSetLimit", 0, 8192)
    yield "the last kernel again", worker.launch(function)
    yield "20 KiB stacks", worker.call("cuCtxSetLimit", 0, 20480)


@pytest.mark.parametrize(
    "steps", [contexts, linear, pools, vmm, arrays, modules, graphs, streams, local_memory], ids=lambda f: f.__name__
)
def test_charge_is_what_the_card_holds(
    quota: Callable[[int], Quota], steps: Callable[[Worker], Iterator[Step]]
) -> None:
    one = quota(LAST_MIB)
    worker = one.worker()
    seen: list[tuple[str, object, int, int]] = [("context", None, one.charged(), held(worker.pid))]
    seen += [(*step, one.charged(), held(worker.pid)) for step in steps(worker)]
    for name, result, charged, real in seen:
        print(f"{name}: {result if result else ''} charged {charged / MIB:g}, held {real / MIB:g} MiB")
    assert [row for row in seen if row[2] != row[3]] == []


@pytest.mark.parametrize("way", ["linear", "arrays", "mixed"])
def test_charge_follows_what_comes_and_goes(quota: Callable[[int], Quota], way: str) -> None:
    one = quota(LAST_MIB)
    command = [str(BUILD / "tests" / "account-churn"), way, "1", "6"]
    seen = []
    with subprocess.Popen(command, env=one.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as churn:
        assert churn.stdin is not None
        assert churn.stdout is not None
        for line in churn.stdout:
            seen.append((line.strip(), one.charged() // MIB, held(churn.pid) // MIB))
            churn.stdin.write("\n")
            churn.stdin.flush()
    print(f"{way}, charged and held at each pause: {[row[1:] for row in seen]}")
    assert [row for row in seen if row[1] != row[2]] == []


def test_local_memory_beyond_the_quota_is_refused(quota: Callable[[int], Quota]) -> None:
    one = quota(2048)
    worker = one.worker()
    function = worker.named("cuModuleGetFunction", worker.module_load(deep(16384))[1], "work")[1]
    before = held(worker.pid)
    assert worker.launch(function) == OOM
    assert one.charged() == held(worker.pid) == before
    print(f"a kernel of 16 KiB a thread is refused at {before // MIB} of 2048 MiB: {worker.stderr().strip()}")


def test_streams_beyond_the_quota_are_refused(quota: Callable[[int], Quota]) -> None:
    one = quota(700)
    worker = one.worker()
    made = 0
    while made < 1000 and worker.out("cuStreamCreate", 1)[0] == 0:
        made += 1
    assert made < 1000
    assert one.charged() == held(worker.pid) <= 700 * MIB
    print(f"{made} streams, then no more: {held(worker.pid) // MIB} of 700 MiB")


def test_processes_that_begin_at_once_are_charged_what_each_takes(quota: Callable[[int], Quota]) -> None:
    one = quota(LAST_MIB)
    workers = [one.worker(start=False) for _ in range(16)]
    for worker in workers:
        worker.send("start")
    assert [worker.receive() for worker in workers] == [[0, 0, 0]] * 16
    real = sum(held(worker.pid) for worker in workers)
    assert one.charged() == real
    print(f"16 contexts made at once: {real // MIB} MiB charged and held")
