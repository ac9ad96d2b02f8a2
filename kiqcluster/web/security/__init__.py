"""What keeps the pages safe: guard (forged requests, headers, the shared secret), entry_keys (keys that hide)."""
