"""Schedules for VTA: layers of 8-bit models over its memories, their sizes chosen by estimates."""
