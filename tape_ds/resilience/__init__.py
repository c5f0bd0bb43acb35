"""Keep a run alive and correct: signals, locks, watchdog, guards against non-finite numbers, restarts."""
