"""What every layer may use: errors, environment flags, the pass log, caches, progress bars."""
