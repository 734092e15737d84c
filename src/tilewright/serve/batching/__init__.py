"""The choice of requests that form a batch, and of those that are dropped: `policy.py` and `dispatcher.py`."""
