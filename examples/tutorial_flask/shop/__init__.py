"""A shop that sells books."""
