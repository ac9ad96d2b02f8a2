"""Enqueues two tasks, and waits for one."""

from shop import charge, welcome

result = welcome.delay("ada")
charge.apply_async(args=(7,), countdown=1)
print(result.get(timeout=20))
