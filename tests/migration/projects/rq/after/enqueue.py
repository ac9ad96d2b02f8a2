"""Enqueues two jobs, and waits for one."""

from shop import charge, welcome

result = welcome.enqueue("ada")
charge.perform_in(1, 7)
assert result is not None
print(result.result(timeout=20))
