"""Independent tasks in several processes that leave nothing running behind, however the work ends.

``ProcessPoolExecutor`` alone lets the others finish an hour's task after one has failed or their parent was killed, and
those would write beside a preparation begun anew. Here every process leaves within a second of either. So tasks must
bear being cut off anywhere.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from tape_ds.errors import Problem, UserError

_START = "spawn"  # the tokenizers library has threads, and a forked copy of it can hang
_LOOK_SECONDS = 0.5


def run(
    work: Callable[[Any, Callable[[Any], None]], None],
    tasks: Sequence[Any],
    workers: int,
    report: Callable[[Any], None],
) -> None:
    """Call ``work(task, tell)`` for every task; ``report`` gets, in this process, what the tasks pass to ``tell``.

    Args:
        work: picklable; begun in the order of ``tasks``, each once.
        tasks: picklable, and what they pass to ``tell`` as well.
        workers: 1 works in this very process. More tasks than workers wait; with fewer, the tokenizers
            library gets the cores left over as threads.
        report: called from this thread.

    Raises:
        UserError: a process was killed from outside.
        Exception: the first that a task raised.
    """
    if workers == 1 or not tasks:
        for task in tasks:
            work(task, report)
        return
    context = multiprocessing.get_context(_START)
    processes = min(workers, len(tasks))
    messages, stop = context.SimpleQueue(), context.Event()
    begin = (work, messages, stop, workers // processes)
    executor = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=begin)
    try:
        waiting: set[Future] = {executor.submit(_call, task) for task in tasks}
        while waiting:
            done, waiting = wait(waiting, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
            while not messages.empty():
                report(messages.get())
            for future in done:
                future.result()
    except BrokenProcessPool as error:
        wrong = "one of the processes was killed, as the system does when memory runs out"
        remedy = "start again with fewer workers: finished work is kept"
        raise UserError(Problem("workers", workers, wrong, remedy)) from error
    except BaseException:
        stop.set()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


_process: dict[str, Any] = {}
"""What a spawned process was started with."""


def _begin(work: Callable, messages: Any, stop: Any, threads: int) -> None:
    """First call in a spawned process."""

    def leave_when_stopped_or_orphaned() -> None:
        parent = multiprocessing.parent_process()
        while not stop.wait(_LOOK_SECONDS) and (parent is None or parent.is_alive()):
            pass
        os._exit(1)

    _process.update(work=work, tell=messages.put)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent alone decides
    threading.Thread(target=leave_when_stopped_or_orphaned, daemon=True).start()


def _call(task: Any) -> None:
    _process["work"](task, _process["tell"])
