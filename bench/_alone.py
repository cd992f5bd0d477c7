"""Running one contender of a benchmark in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any


def alone(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Its result, with its peak memory in MB; {"missing": why} when a package is not installed.

    The process is forked, so that data made before is shared; make it with NumPy alone, because threads of torch and of BLAS do not
    survive a fork.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def work() -> None:
        try:
            found = function(*arguments)
            found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        except ImportError as error:
            found = {"missing": str(error)}
        there.send(found)

    process = context.Process(target=work)
    process.start()
    there.close()
    try:
        found = here.recv()
    except EOFError:
        raise SystemExit(f"{function.__name__} died; its message is above.") from None
    process.join()
    return found


def cpu_ms(run: Callable[[], Any], *, repeats: int = 5) -> float:
    """Processor milliseconds of all threads, the best of some repetitions after one that warms up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return 1e3 * min(times)
