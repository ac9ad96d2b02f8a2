"""Migrations of the tables; one that was released never changes.

0001_outbox_and_inbox   both tables
"""
