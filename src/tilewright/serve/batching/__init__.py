"""Which requests make a batch and which are dropped: `policy.py` and `dispatcher.py`."""
