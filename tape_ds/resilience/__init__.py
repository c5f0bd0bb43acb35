"""What keeps a run alive and honest: signals, locks, a watchdog, guards against bad numbers."""
