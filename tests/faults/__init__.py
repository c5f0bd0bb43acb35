"""Faults on purpose: processes killed, files damaged, disks filled, numbers broken, and what must hold afterwards.

A *campaign* is one fault, tried many times; an *attempt* is one try, decided by the campaign's name, its number and a
seed alone, so that any of them can be repeated by itself. ``make faults`` (``python -m tests.faults``) makes all
attempts and writes ``docs/results/faults.md``; the tests of this folder make a seeded part of them through the same
functions.

    campaign.py     what campaigns and attempts are
    ../journal.py   which attempts are done: a campaign that was killed continues
    report.py       the table, and the stored result beside it
    runs.py         the small run that everything is done to, its launches, its processes, what it left
    worker.py       the launcher with a fault inside: dies, fails, slows down or counts wrong at a chosen call
    kills.py, stops.py, damages.py, disks.py, nonfinite.py, ranks.py, stuck.py    the campaigns
"""
