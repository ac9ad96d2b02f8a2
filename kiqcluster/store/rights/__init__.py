"""Rights: which Redis commands kiqcluster runs, and whether this user may.

Read in this order:
lists        the commands that each worker needs, and each feature besides; made by `python -m tools.rights`
trials       a harmless call of each command: at a worker's boot, and to name what an ACL forbids a script
"""
