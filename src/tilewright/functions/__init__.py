"""Functions that are written as one formula and compiled for the arrays that come: `tw.comprehension`."""
