"""Measuring: ceilings of the machine, barriers, races of processes in turns."""
