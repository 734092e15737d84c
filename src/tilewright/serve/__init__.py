"""An inference server that keeps latency promises (docs/serving.md).

protocol/   Open Inference Protocol version 2 over HTTP, gRPC and a Unix socket with shared memory
batching/   which requests make a batch, and which can no longer be answered in time: policy, estimates, simulation
packing/    which models share a core so that all of their promises hold
core.py     models, requests and the lanes that compute them: what all protocols call
client.py   `tw.client`, which needs NumPy alone
"""
