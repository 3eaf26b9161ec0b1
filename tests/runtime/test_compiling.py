"""Threads that compile at once: the same objects, whole processes after a fork, errors of LLVM in its words."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fresh import finish, start

from polyconv.kernels import compile as compiler
from polyconv.kernels import objects
from polyconv.kernels.language import Module
from polyconv.kernels.signature import Signature
from polyconv.target import host_target


def text(number: int) -> str:
    """A function that takes LLVM some milliseconds."""
    lines = [f"  %a{i + 1} = fmul <16 x float> %a{i}, %a{i // 2}" for i in range(600 + number)]
    body = "\n".join(["  %a0 = load <16 x float>, ptr %p", *lines])
    return (
        f'target triple = "{host_target().triple}"\ndefine void @f(ptr %p) {{\n{body}\n'
        f"  store <16 x float> %a{600 + number}, ptr %p\n  ret void\n}}\n"
    )


def test_objects_are_those_of_one_thread() -> None:
    texts = [text(number) for number in range(12)]
    alone = [compiler.object_code(t, host_target()) for t in texts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda t: compiler.object_code(t, host_target()), texts))
    assert together == alone


def test_threads_are_inside_llvm_at_once() -> None:
    most, is_over = 0, threading.Event()

    def work() -> None:
        while not is_over.is_set():
            compiler.object_code(text(0), host_target())

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    end = time.monotonic() + 60
    while most < 2 and time.monotonic() < end:
        most = max(most, len(compiler._inside._threads))
    is_over.set()
    for worker in workers:
        worker.join()
    assert most == 2


def test_llvm_says_what_is_wrong_with_a_text() -> None:
    with pytest.raises(RuntimeError, match="expected top-level entity"):
        compiler.object_code("nonsense", host_target())
    assert compiler.object_code(text(0), host_target())


class Nothing(Signature):
    """No arguments."""


def test_a_kernel_that_many_ask_for_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built, barrier = [], threading.Barrier(4)
    monkeypatch.setattr(objects, "_loaded", {})

    def build(k: Module) -> None:
        built.append(threading.get_ident())
        time.sleep(0.05)
        with k.function("nothing", Nothing):
            pass

    def ask(_: int) -> int:
        barrier.wait()
        name = f"made once {os.getpid()} {time.time_ns() // 10**12}"
        return objects.kernel(name, {"nothing": Nothing}, build, host_target(), check=True)["nothing"]

    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(ask, range(4)))
    assert (len(built), len(found)) == (1, 1)
    assert objects._making == {}


FORKS = """
from polyconv.kernels.compile import object_code
from polyconv.target import host_target

text = TEXT
is_over = []
def work():
    while not is_over:
        object_code(text, host_target())
workers = [threading.Thread(target=work) for _ in range(2)]
for worker in workers:
    worker.start()
alone = object_code(text, host_target())
for _ in range(8):
    time.sleep(0.01)
    child = os.fork()
    if not child:
        os._exit(0 if object_code(text, host_target()) == alone else 1)
    assert os.waitpid(child, 0)[1] == 0
is_over.append(True)
for worker in workers:
    worker.join()
print("whole")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_children_that_are_forked_meanwhile_can_compile() -> None:
    status, out, err = finish(start(FORKS.replace("TEXT", repr(text(0)))))
    assert (status, out.strip()) == (0, "whole"), err
