"""Fakes, samples and fixtures that several tests share."""
