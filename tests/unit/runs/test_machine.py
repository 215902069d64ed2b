"""The figures of a lane: the line as people grep for it, and readers that never raise."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from tasuki.runs.machine import (
    NO_NVML,
    Gpu,
    GpuAnswer,
    GpuReader,
    Nvml,
    Processes,
    ProcessReader,
    Reading,
    host_bytes,
)
from tests.unit.runs.fake_nvml import GIB, Card, FakeNvml, NVMLError

GPU_0, GPU_1, MIG = "GPU-0ab", "GPU-1cd", "MIG-2ef"
WITHIN_S = 60.0


def reading(*gpus: Gpu, has_gpus: bool = True, **more: Any) -> Reading:
    facts: dict[str, Any] = {
        "gpus": GpuAnswer(gpus=gpus),
        "samples_per_sec": 1024.3,
        "cpu_percent": 380.4,
        "rss_bytes": int(12.4 * GIB),
        "host_bytes": 251 * GIB,
        "num_processes": 9,
        "window_s": 30.0,
    }
    return Reading(has_gpus=has_gpus, **(facts | more))


def gpu(used: float, total: float, util: float | None) -> Gpu:
    return Gpu(used_bytes=int(used * GIB), total_bytes=int(total * GIB), util=util)


HOST = "CPU: 380% | Host: 12.4/251GB"


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (
            reading(gpu(45.2, 79.6, 92)),
            f"Memory: 45.2/80GB | Util: 92% | Samples/sec: 1024 | {HOST}",
        ),
        (
            reading(gpu(45.2, 79.6, 92), gpu(30.0, 79.6, 47)),
            f"Memory: 75.2/159GB | Util: 70% | Samples/sec: 1024 | {HOST}",
        ),
        (
            reading(gpu(4.0, 9.8, None), samples_per_sec=None),
            f"Memory: 4.0/10GB | Util: - | Samples/sec: - | {HOST}",
        ),
        (
            reading(gpu(4.0, 9.8, None), gpu(4.0, 9.8, 50), samples_per_sec=0.4567),
            f"Memory: 8.0/20GB | Util: 50% | Samples/sec: 0.46 | {HOST}",
        ),
        (
            reading(
                has_gpus=False, cpu_percent=185.0, rss_bytes=int(1.2 * GIB), host_bytes=24 * GIB
            ),
            "no GPU | Samples/sec: 1024 | CPU: 185% | Host: 1.2/24GB",
        ),
        (
            reading(gpus=GpuAnswer(problem=NO_NVML), samples_per_sec=0.0),
            f'GPU unknown (pip install "tasuki[gpu]") | Samples/sec: 0 | {HOST}',
        ),
    ],
)
def test_the_line_is_the_one_that_people_grep_for(value, line):
    assert value.line() == f"[GPU Stats] {line}"


def test_an_event_has_the_numbers_of_each_gpu_for_those_who_plot_them():
    facts = reading(gpu(1.0, 2.0, 50), gpu(0.5, 2.0, None)).facts()
    assert facts == {
        "gpus": [
            {"used_bytes": GIB, "total_bytes": 2 * GIB, "util": 50},
            {"used_bytes": GIB // 2, "total_bytes": 2 * GIB, "util": None},
        ],
        "samples_per_sec": 1024.3,
        "cpu_percent": 380.4,
        "rss_bytes": int(12.4 * GIB),
        "host_bytes": 251 * GIB,
        "processes": 9,
        "window_s": 30.0,
    }


# -- processes --------------------------------------------------------------------------------


def read_processes(pids: list[int]) -> Processes:
    return ProcessReader().read(pids)


BURN = """
import sys, time
end = time.process_time() + 0.3
while time.process_time() < end: pass
sys.stdin.read()
"""
BURNS_IN_A_GRANDCHILD = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {BURN!r}], stdin=subprocess.PIPE)
sys.stdin.readline()
child.stdin.close()
child.wait()
print("over", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts Python code as a child with pipes."""
    started = []

    def start_code(code: str) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", code], text=True, **pipes)
        started.append(process)
        return process

    yield start_code
    for process in started:
        process.kill()
        process.communicate()


def until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN_S
    while not is_true():
        assert time.monotonic() < end


def test_cpu_time_and_memory_of_a_process_and_its_children_are_read_also_of_those_that_are_over(
    start,
):
    process = start(BURNS_IN_A_GRANDCHILD)
    until(lambda: read_processes([process.pid]).num == 2)
    until(lambda: read_processes([process.pid]).cpu_s > 0.2)
    used = read_processes([process.pid])
    assert 4 << 20 < used.rss_bytes < host_bytes()
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "over\n"
    later = read_processes([process.pid])
    assert later.num == 1 and later.cpu_s >= 0.29


def test_children_of_any_thread_count_and_each_process_once(start):
    code = "threading.Thread(target=lambda: subprocess.run(['sleep', '60'])).start()"
    process = start(f"import subprocess, sys, threading\n{code}\nprint(1, flush=True)")
    until(lambda: read_processes([process.pid]).num == 2)
    (child,) = psutil.Process(process.pid).children()
    assert read_processes([process.pid, child.pid, process.pid]).num == 2
    child.kill()


THREADS = """
import subprocess, sys, threading, time
for _ in range(30):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
threading.Thread(target=lambda: subprocess.run(["sleep", "600"]), daemon=True).start()
for _ in range(30):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("started", flush=True)
sys.stdin.read()
"""


def test_with_very_many_threads_a_child_of_one_is_found_in_a_few_readings_and_then_kept(start):
    process = start(THREADS)
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    until(lambda: read_processes([process.pid]).num == 2)
    reader = ProcessReader(most_threads=10)
    found = [reader.read([process.pid]).num for _ in range(30)]
    assert found == sorted(found) and found[7:] == [2] * 23, found
    (child,) = psutil.Process(process.pid).children()
    child.kill()
    until(lambda: reader.read([process.pid]).num == 1)


def test_a_process_that_is_gone_counts_nothing_and_raises_nothing(start):
    process = start("pass")
    process.wait()
    used = read_processes([process.pid])
    assert (used.cpu_s, used.rss_bytes, used.num) == (0.0, 0, 0)


def test_a_name_with_brackets_and_spaces_is_no_trap(start):
    rename = "import ctypes\nctypes.CDLL(None).prctl(15, b') R 1 (', 0, 0, 0)\n"
    process = start(f"{rename}print(1, flush=True)\nimport sys\nsys.stdin.read()")
    assert process.stdout is not None and process.stdout.readline()
    used = read_processes([process.pid])
    assert used.num == 1 and 1 << 20 < used.rss_bytes < 1 << 30 and used.cpu_s < WITHIN_S


# -- GPUs -------------------------------------------------------------------------------------


@pytest.fixture
def driver() -> FakeNvml:
    return FakeNvml(
        [
            Card(GPU_0, used=10 * GIB, total=80 * GIB, util=90),
            Card(GPU_1, used=20 * GIB, total=80 * GIB, util=30),
            Card(MIG, used=1 * GIB, total=10 * GIB, util=None),
        ]
    )


@pytest.mark.parametrize(
    ("ids", "used"),
    [
        (["0"], [10]),
        (["1"], [20]),
        (["1", "0"], [20, 10]),
        ([GPU_1], [20]),
        ([GPU_0, GPU_1], [10, 20]),
        ([MIG], [1]),
    ],
)
def test_only_the_named_gpus_are_read_by_index_or_uuid(driver, ids, used):
    answer = GpuReader(ids, load=lambda: driver).read()
    assert [gpu.used_bytes // GIB for gpu in answer.gpus] == used and not answer.problem
    assert [gpu.util is None for gpu in answer.gpus] == [name == MIG for name in ids], "a slice"


def test_of_several_gpus_the_ones_that_answer_are_told_with_what_is_wrong_with_the_other(driver):
    driver.cards[0] = Card(GPU_0, used=0, total=0, is_lost=True)
    answer = GpuReader(["0", "1"], load=lambda: driver).read()
    assert [gpu.used_bytes // GIB for gpu in answer.gpus] == [20]
    assert answer.problem == "0: GPU is lost"


def test_the_driver_is_begun_once_and_again_only_after_it_failed_altogether(driver):
    reader = GpuReader(["0"], load=lambda: driver)
    reader.read()
    reader.read()
    assert driver.num_inits == 1
    card, driver.cards[0] = driver.cards[0], Card(GPU_0, used=0, total=0, is_lost=True)
    assert reader.read().problem == "0: GPU is lost"
    driver.cards[0] = card
    assert len(reader.read().gpus) == 1 and driver.num_inits == 2


def test_without_a_driver_or_without_the_package_the_answer_says_so():
    broken = FakeNvml(init_error="Driver/library version mismatch")
    assert GpuReader(["0"], load=lambda: broken).read().problem == "Driver/library version mismatch"

    def absent() -> Nvml:
        raise ImportError("No module named 'pynvml'")

    assert GpuReader(["0"], load=absent).read() == GpuAnswer(problem='pip install "tasuki[gpu]"')


def test_a_gpu_that_does_not_exist_is_a_problem_and_no_error(driver):
    for name in ("7", "GPU-nobody", "NoDevFiles", ""):
        answer = GpuReader([name], load=lambda: driver).read()
        assert answer.gpus == () and answer.problem


def test_the_fake_driver_has_the_functions_of_the_real_package():
    pynvml = pytest.importorskip("pynvml")
    for name in [name for name in vars(Nvml) if name.startswith("nvml")]:
        real = list(inspect.signature(getattr(pynvml, name)).parameters)
        own = list(inspect.signature(getattr(FakeNvml, name)).parameters)[1:]
        assert real[: len(own)] == own, name
    assert issubclass(pynvml.NVMLError, Exception) and issubclass(NVMLError, Exception)
    answer = GpuReader(
        ["0"]
    ).read()  # with a GPU and its driver it is read, else it is said why not
    assert len(answer.gpus) == 1 or answer.problem
