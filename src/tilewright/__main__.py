"""`python -m tilewright`: the program `tilewright` without its installed script."""

from tilewright.cli.main import main

main()
