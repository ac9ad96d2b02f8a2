"""Example applications; each runs with one command."""
