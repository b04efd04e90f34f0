import subprocess
import sys

import pytest

from ldstyle.cpu.memory import keep_freed_memory

SCRIPT = """
import resource, sys
import torch
from ldstyle.cpu.memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(3)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2 ** 24)  # 64 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for _ in range(30):
    faults()  # the heap finds its size: small allocations cut up to seven of the first freed tensors
print(max(faults() for _ in range(5)))
"""


def page_faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("Not glibc.")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_large_tensors_reuse_the_pages_of_freed_ones() -> None:
    kept = page_faults("keep")
    assert kept < 100, kept
    assert page_faults("default") > 10 * kept


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
