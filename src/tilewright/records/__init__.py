"""Tuning records: files with measured results (`record.py`), folders of them (`store.py`), and how compiles look them
up."""
