"""Open reproduction suite for *Attention Residuals* (arXiv:2603.15031)."""

__version__ = "0.1.0"
