"""One contender of a benchmark in a process of its own, and processor time."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any


def isolated(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """The function's result with its peak memory in MB; {"missing": reason} where a package is not installed.

    The process is forked and shares data made before. Make that data with NumPy alone: threads of torch and BLAS do not survive a fork.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        try:
            found = function(*arguments)
            found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        except ImportError as error:
            found = {"missing": str(error)}
        sender.send(found)

    process = context.Process(target=work)
    process.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        raise SystemExit(f"The process of {function.__name__} ended without a result; its message is above.") from None
    process.join()
    return found


def cpu_ms(run: Callable[[], Any], *, repeats: int = 5) -> float:
    """Processor milliseconds of all threads: the minimum of `repeats` runs after a warm-up run."""
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return 1e3 * min(times)
