"""`python -m kiqcluster` is `kiqcluster`."""

from kiqcluster.cli import main

main()
