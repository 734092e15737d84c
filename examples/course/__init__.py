"""The programs of `docs/course/`: `make example-NAME` runs one."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy is imported
