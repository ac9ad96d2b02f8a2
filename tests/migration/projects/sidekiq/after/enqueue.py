"""Enqueues two jobs; a Ruby process may go on to enqueue them as before."""

from shop import charge, welcome

welcome.perform_async("ada")
charge.perform_in(1, 7)
