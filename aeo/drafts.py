"""Evaluations being written."""
