"""Tuning records: files that keep what was measured (`record.py`), folders of them (`store.py`) and who asks them."""
