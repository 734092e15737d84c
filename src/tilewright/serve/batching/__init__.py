"""The choice of requests that make a batch, and of those that are dropped: `policy.py` and `dispatcher.py`."""
