"""Mails: what customers read."""
