"""The version, alone in a file so that the build reads it without importing the package."""

__all__ = ["VERSION", "__version__"]

VERSION = "0.1.0"
__version__ = VERSION
