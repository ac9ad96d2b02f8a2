"""Empty, in place of another `usercustomize`: see kiqcluster/ipc/site_hooks.py."""
