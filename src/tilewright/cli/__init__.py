"""The command line: `tilewright compile|run|show|bench|doctor`. One file a command; `main.py` puts them together."""
