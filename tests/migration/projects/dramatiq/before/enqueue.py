"""Enqueues two actors, and waits for one."""

from shop import charge, welcome

message = welcome.send("ada")
charge.send_with_options(args=(7,), delay=1000)
print(message.get_result(block=True, timeout=20_000))
