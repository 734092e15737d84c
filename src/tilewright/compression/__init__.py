"""Smaller models: `tw.compress` prunes and shares weights, and trains what is left to follow the original."""
