"""Requests come by HTTP (`http.py`, `routes.py`, `rest.py`), gRPC (`grpc_server.py`), shared memory (`local.py`)."""
