"""`python -m dreamgym`."""

from dreamgym.cli import main

main()
