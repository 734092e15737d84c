"""How requests come in: HTTP (`http.py` reads, `routes.py` answers, `rest.py` knows the bodies)."""
