"""The command line: `tilewright compile|run|show|profile|doctor` and more. One file a command; `main.py` joins them."""
