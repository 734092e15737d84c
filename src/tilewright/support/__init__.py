"""The base of every layer: errors, environment flags, the pass log, caches, progress bars."""
