"""`python -m kiqcluster.ctl` is `kiqctl`."""

from kiqcluster.ctl.command import main

if __name__ == "__main__":
    main()
