"""Attention whose two products are made in registers of matrices, with the softmax between them in one kernel."""
