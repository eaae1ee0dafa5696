"""Conversion: thresholds become neurons at their sites, and everything can be undone."""
