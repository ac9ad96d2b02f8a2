"""Orders: what customers want."""
