"""The same bits for any number of threads, in forked children, and under several callers at once."""

from __future__ import annotations

import hashlib
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fmcore import masks
from fmcore_cpu import attention

pytestmark = pytest.mark.usefixtures("kernels")


class Problem:
    """Inputs made beforehand: a forked child must not enter torch's own OpenMP regions, which would deadlock there."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tensors = [torch.randn(1, 700, heads, 32, generator=generator).to(dtype) for heads in (4, 2, 2)]
        self.mask = masks.causal_document([300, 37, 363])

    def digest(self) -> str:
        """Hash of everything that a forward and a backward give."""
        out, lse = attention.forward(*self.tensors, self.mask, softmax_scale=0.2)
        grads = attention.backward(out, lse, *self.tensors, out, lse, self.mask, softmax_scale=0.2)[:3]
        state = hashlib.sha256()
        for t in (out, lse, *grads):
            state.update(t.contiguous().view(torch.uint8).numpy().tobytes())
        return state.hexdigest()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    problem, found = Problem(dtype=dtype), set()
    for threads in (1, 2, 3, 5, 16):
        torch.set_num_threads(threads)
        found |= {problem.digest() for _ in range(3)}
    assert len(found) == 1


def test_callers_at_once() -> None:
    torch.set_num_threads(3)
    problems = [Problem(seed) for seed in range(4)]
    want = [problem.digest() for problem in problems]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(Problem.digest, problems * 3)) == want * 3


def _child(problem: Problem, queue: multiprocessing.Queue[str]) -> None:
    queue.put(problem.digest())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_after_use_in_the_parent() -> None:
    torch.set_num_threads(2)
    problem = Problem()
    want = problem.digest()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_child, args=(problem, queue), daemon=True) for _ in range(2)]
    for child in children:
        child.start()
    try:
        assert {queue.get(timeout=60) for _ in children} == {want}
    finally:
        for child in children:
            child.join(10)
            child.kill()
    assert problem.digest() == want
