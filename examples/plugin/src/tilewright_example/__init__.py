"""A plug-in of Tilewright that brings one thing through each door; `pyproject.toml` names them."""
