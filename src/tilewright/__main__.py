"""`python -m tilewright`."""

from tilewright.cli.main import main

main()
