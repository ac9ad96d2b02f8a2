"""Empty, in place of another `sitecustomize`: see kiqcluster/ipc/site_hooks.py."""
