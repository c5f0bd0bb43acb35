"""How much private memory a process takes while it does something: anonymous pages, and not those of mapped files,
which the system takes back when it needs them."""

import subprocess
import sys

SCRIPT = """
import sys, threading, time
from pathlib import Path
from tape_ds.checkpoint import consolidation

def own():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

before = most = 0
over = threading.Event()

def watch():
    global most
    while not over.is_set():
        most = max(most, own())
        time.sleep(0.002)

exec(sys.argv[1])  # all that is imported and made once
before, thread = own(), threading.Thread(target=watch)
thread.start()
exec(sys.argv[2])
over.set()
thread.join()
print(most - before)
"""


def growth(first: str, then: str) -> int:
    """Bytes that the statement ``then`` adds at its peak, in a process that has done ``first``."""
    command = [sys.executable, "-c", SCRIPT, first, then]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return int(ended.stdout.split()[-1])
