"""Enqueues two tasks, and waits for one."""

from shop import charge, welcome

result = welcome("ada")
charge.schedule(args=(7,), delay=1)
print(result(blocking=True, timeout=20))
