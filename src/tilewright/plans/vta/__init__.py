"""Schedules for VTA: layers of 8-bit models on its memories, with sizes chosen by estimates."""
