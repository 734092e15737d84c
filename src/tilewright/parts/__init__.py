"""Models of several parts: what the compiler takes, and what others run."""
