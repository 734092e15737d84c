"""The backend of `torch.compile`: parts of PyTorch's graphs as programs, the rest in PyTorch."""
