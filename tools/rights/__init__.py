"""Makes the lists of Redis commands that each part of kiqcluster runs, from its code and its scripts.

reach        which functions a part of the package can call, and which commands are in these
__main__     which parts there are; writes store/rights/lists.py, and the users of docs/guides/secure_redis.md
"""
