# Enqueues two jobs; the same before and after.
require "./shop"

Welcome.perform_async("ada")
Charge.perform_in(1, 7)
