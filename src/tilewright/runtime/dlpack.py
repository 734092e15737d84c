"""Byte offsets into DLPack's structs of major version 1: a tensor, and the functions of an exchange API."""

from __future__ import annotations

DL_DATA, DL_DEVICE, DL_RANK, DL_CODE, DL_SHAPE, DL_STRIDES, DL_OFFSET, DL_SIZE = 0, 8, 16, 20, 24, 32, 40, 48
DL_CPU = 1
DL_MANAGED_TENSOR = 32
API_ALLOCATE, API_TO_PYTHON, API_VIEW = 16, 32, 40
